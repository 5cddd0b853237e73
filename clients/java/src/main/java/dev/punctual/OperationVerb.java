package dev.punctual;

/** What an operation does to every task that matches. */
public enum OperationVerb {
    CANCEL, PAUSE, RESUME, FIRE,
    /** Each task is due later by the given time. */
    SHIFT,
    /** Each task is due later by a part of the given time that is different for each. */
    SPREAD
}
