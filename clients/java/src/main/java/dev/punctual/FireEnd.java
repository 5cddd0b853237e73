package dev.punctual;

/** How a fire ended. */
public enum FireEnd {
    DONE, DEAD, CANCELLED, REPLACED, SKIPPED
}
