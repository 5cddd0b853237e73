package dev.punctual;

/** The state of an operation. */
public enum OperationState {
    RUNNING, DONE, STOPPED, FAILED
}
