package dev.punctual;

/** Whether a lane can send, and what keeps it from that. */
public enum LaneState {
    READY, FULL, SLOW, NO_WORKERS, AWAY
}
