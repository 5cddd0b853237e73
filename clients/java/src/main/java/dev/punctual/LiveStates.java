package dev.punctual;

/** Counts by state. */
public record LiveStates(
        long accepted,
        long scheduled,
        long firing,
        long paused,
        long done,
        long dead,
        long cancelled,
        long deadLetters) {}
