package dev.punctual;

import java.time.Instant;

/** Dead letters with the same reason and target. */
public record DeadGroup(
        String reason,
        String target,
        long count,
        Instant firstAt,
        Instant lastAt,
        String example) {}
