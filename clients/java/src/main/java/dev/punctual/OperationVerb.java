package dev.punctual;

/** What an operation does to every task that matches. */
public enum OperationVerb {
    CANCEL, PAUSE, RESUME, FIRE
}
