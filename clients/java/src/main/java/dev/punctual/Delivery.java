package dev.punctual;

import java.time.Duration;
import java.time.Instant;

/**
 * What a worker receives for one attempt. It is settled by its {@code token} before its {@code lease} is over, or
 * it is delivered again.
 */
public record Delivery(
        String token,
        String fireId,
        String task,
        String key,
        Occasion occasion,
        int attempt,
        long version,
        JsonValue payload,
        String payloadBase64,
        String contentType,
        Instant fireAt,
        Instant firedAt,
        long lagMs,
        Duration lease,
        String callbackOf) {
    /** Reads the payload as a record, map, list, text, number or boolean; null if there is none. */
    public <T> T payload(Class<T> type) {
        return payload == null ? null : payload.as(type);
    }
}
