package dev.punctual;

/** What a task waits for. */
public enum WaitingFor {
    TIME, RETRY, WORKER, CAPACITY, LIMIT, PAUSE, OWNER, NOTHING
}
