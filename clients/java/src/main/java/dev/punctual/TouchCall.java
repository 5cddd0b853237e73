package dev.punctual;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;

/** Moves the fire of a task. Without anything else it moves a watch to now + its {@code within}. */
public final class TouchCall {
    private final Punctual client;
    private final String task;
    private final Map<String, Object> body = new LinkedHashMap<>();

    TouchCall(Punctual client, String task) {
        this.client = client;
        this.task = task;
    }

    /** Moves a watch to this long from now, for this once. */
    public TouchCall within(Duration silence) {
        body.put("within", silence);
        return this;
    }

    /** Moves a task that fires once to this long from now. */
    public TouchCall in(Duration delay) {
        body.put("in", delay);
        return this;
    }

    /** Moves a task that fires once to this time. */
    public TouchCall at(Instant time) {
        body.put("at", time);
        return this;
    }

    /** Sends the touch and returns the task. */
    public Task send() {
        return client.send(call()).as(Task.class);
    }

    /** Sends the touch and returns the time and the version only, which is faster. */
    public TouchedTask sendMinimal() {
        return client.send(call().header("prefer", "return=minimal")).as(TouchedTask.class);
    }

    private Call call() {
        return client.call("POST", "/tasks/" + Call.encode(task) + "/touch").body(body).idempotent(true);
    }
}
