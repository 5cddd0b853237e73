package dev.punctual;

import java.time.Duration;
import java.time.Instant;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;

/** Moves the fires of many tasks; with {@link #orCreate} it creates those that are missing. */
public final class TouchManyCall {
    private final Punctual client;
    private final Map<String, Object> body = new LinkedHashMap<>();

    TouchManyCall(Punctual client, Collection<String> keys) {
        this.client = client;
        body.put("keys", keys);
    }

    /** Creates a key that is missing as this task. */
    public TouchManyCall orCreate(NewTask task) {
        body.put("create", task);
        return this;
    }

    /** Moves watches to this long from now, for this once. */
    public TouchManyCall within(Duration silence) {
        body.put("within", silence);
        return this;
    }

    /** Moves tasks that fire once to this long from now. */
    public TouchManyCall in(Duration delay) {
        body.put("in", delay);
        return this;
    }

    /** Moves tasks that fire once to this time. */
    public TouchManyCall at(Instant time) {
        body.put("at", time);
        return this;
    }

    public TouchManyAnswer send() {
        return client.send(client.call("POST", "/touch").body(body).idempotent(true)).as(TouchManyAnswer.class);
    }
}
