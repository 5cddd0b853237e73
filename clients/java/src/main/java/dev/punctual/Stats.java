package dev.punctual;

import java.time.Instant;

/** Counts of a namespace. */
public record Stats(
        String namespace,
        long accepted,
        long scheduled,
        long firing,
        long paused,
        long done,
        long dead,
        long cancelled,
        long deadLetters,
        long queued,
        long parkedLanes,
        Instant oldestOverdue,
        long oldestOverdueMs) {}
