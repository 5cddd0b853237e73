package dev.punctual;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;

/** The clock of {@code punctual dev}, which stands still until it is moved. Brokers of {@code serve} have none (404). */
public final class VirtualClock {
    private final Punctual client;

    VirtualClock(Punctual client) {
        this.client = client;
    }

    /** Whether the clock runs and what it shows. {@code speed} is 0 or null while it is frozen. */
    public record Reading(Instant now, Boolean frozen, Double speed) {}

    /** What happened while the clock moved: how many fires there were, and how many are not settled. */
    public record Advanced(Instant now, long fires, long unsettled) {}

    public Reading read() {
        return client.send(client.root("GET", "/v1/clock")).as(Reading.class);
    }

    /** Moves the clock and returns when everything that became due has been delivered and settled. */
    public Advanced advance(Duration by) {
        return advance(by, null);
    }

    /** The same; {@code wait} is the real time to wait for deliveries that a worker holds. */
    public Advanced advance(Duration by, Duration wait) {
        return advance("by", by, wait);
    }

    public Advanced advanceTo(Instant to) {
        return advanceTo(to, null);
    }

    public Advanced advanceTo(Instant to, Duration wait) {
        return advance("to", to, wait);
    }

    private Advanced advance(String name, Object value, Duration wait) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put(name, value);
        if (wait != null) {
            body.put("wait", wait);
        }
        Call call = client.root("POST", "/v1/clock/advance").body(body).waitFor(wait == null ? Duration.ZERO : wait);
        // Moving to an instant twice moves once.
        return client.send(call.idempotent(name.equals("to"))).as(Advanced.class);
    }

    /** Lets the clock run, this many times as fast as real time. */
    public Reading run(double speed) {
        return client.send(client.root("POST", "/v1/clock/run").body(Map.of("speed", speed)).idempotent(true))
            .as(Reading.class);
    }

    /** Stops the clock. */
    public Reading freeze() {
        return client.send(client.root("POST", "/v1/clock/freeze").idempotent(true)).as(Reading.class);
    }
}
