package dev.punctual;

import java.time.Instant;
import java.util.List;

/**
 * A fire in the history of a task. {@code end} is null for the current one; {@code result} is what a worker sent
 * with its ack.
 */
public record FireRecord(
        String fireId,
        String task,
        String key,
        Occasion occasion,
        Instant fireAt,
        Instant firedAt,
        Instant endedAt,
        Long lagMs,
        FireEnd end,
        DeadReason reason,
        JsonValue result,
        SkippedFires skipped,
        List<Attempt> attempts) {}
