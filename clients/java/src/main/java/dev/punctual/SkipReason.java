package dev.punctual;

/** Why fires were skipped. */
public enum SkipReason {
    MISFIRE, OVERLAP, PAUSED
}
