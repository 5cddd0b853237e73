package dev.punctual;

import java.time.Duration;
import java.time.Instant;

/** An operation on many tasks. */
public record Operation(
        String id,
        @JsonName("do") OperationVerb verb,
        TaskFilter where,
        Duration later,
        OperationState state,
        long matched,
        long changed,
        long failed,
        Instant startedAt,
        Instant endedAt,
        String problem,
        String by) {}
