package dev.punctual;

/** Whether the condition of an alarm holds. */
public enum AlarmState {
    OK, RAISED
}
