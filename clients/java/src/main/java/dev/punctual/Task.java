package dev.punctual;

import java.time.Duration;
import java.time.Instant;
import java.util.Map;

/**
 * A task as a broker answers it. Fields that do not apply are null. A task that has ended and is found by its key
 * or id has {@code end}, {@code firedAt} and {@code endedAt}, and only few of the others.
 */
public record Task(
        String id,
        String namespace,
        String key,
        State state,
        Instant fireAt,
        long version,
        int attempt,
        Instant createdAt,
        Instant updatedAt,
        Instant nominalAt,
        Duration in,
        Instant at,
        String cron,
        Duration every,
        Duration within,
        String timezone,
        Instant startsAt,
        Instant endsAt,
        Long count,
        Misfire misfire,
        Overlap overlap,
        Dst dst,
        Duration jitter,
        Boolean onReturn,
        Duration postponeMax,
        Target target,
        JsonValue payload,
        String payloadBase64,
        String contentType,
        Guarantee guarantee,
        RetryPolicy retry,
        Duration timeout,
        Duration expiresAfter,
        Map<String, String> labels,
        Boolean paused,
        Target onDone,
        Target onDead,
        RedrivenFire redriven,
        String callbackOf,
        FireEnd end,
        Instant firedAt,
        Instant endedAt) {
    /** Reads the payload as a record, map, list, text, number or boolean; null if there is none. */
    public <T> T payload(Class<T> type) {
        return payload == null ? null : payload.as(type);
    }
}
