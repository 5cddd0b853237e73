package dev.punctual;

import java.time.Instant;

/** A webhook whose signature was checked. What the sender left out is null or 0. */
public record Webhook(
        String fireId,
        Instant timestamp,
        String namespace,
        String key,
        Occasion occasion,
        int attempt,
        long version,
        Instant fireAt,
        long lagMs,
        String callbackOf,
        byte[] body) {
    /** Reads the body as JSON. */
    public <T> T payload(Class<T> type) {
        return Json.read(body, type);
    }
}
