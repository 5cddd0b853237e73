package dev.punctual;

import java.time.Instant;

/** What a handler receives: the payload and the delivery that brought it. */
public record Fire<T>(T payload, Delivery delivery) {
    /** The id of the fire: the same for every attempt, to deduplicate on. */
    public String id() {
        return delivery.fireId();
    }

    /** The key of the task; null if it has none. */
    public String key() {
        return delivery.key();
    }

    /** 1, 2, … */
    public int attempt() {
        return delivery.attempt();
    }

    public Occasion occasion() {
        return delivery.occasion();
    }

    /** When it was due. */
    public Instant fireAt() {
        return delivery.fireAt();
    }
}
