package dev.punctual;

/** The state of a task. */
public enum State {
    SCHEDULED, FIRING, PAUSED, DONE, DEAD, CANCELLED
}
