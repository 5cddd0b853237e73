package dev.punctual;

import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What a task is made of: when it fires, where it goes, what it carries, and how it is retried. Exactly one of
 * {@link #in}, {@link #at}, {@link #cron}, {@link #every} and {@link #within} is required, and a target. The broker checks
 * the values; what it does not accept is an {@link InvalidException} that names the field.
 */
public abstract sealed class TaskFields<T extends TaskFields<T>> permits NewTask, ScheduleCall {
    private final Map<String, Object> fields = new LinkedHashMap<>();

    TaskFields() {}

    abstract T self();

    Map<String, Object> fields() {
        return fields;
    }

    private T set(String name, Object value) {
        fields.put(name, value);
        return self();
    }

    /** Fires once, this long from now. */
    public T in(Duration delay) {
        return set("in", delay);
    }

    /** Fires once, at this time. */
    public T at(Instant time) {
        return set("at", time);
    }

    /** Fires whenever the cron expression says; in UTC unless {@link #zone} is given. */
    public T cron(String expression) {
        return set("cron", expression);
    }

    /** Fires in this interval. */
    public T every(Duration interval) {
        return set("every", interval);
    }

    /** A watch: fires when it was not touched for this long. */
    public T within(Duration silence) {
        return set("within", silence);
    }

    /** The time zone of a cron expression. */
    public T zone(ZoneId zone) {
        return set("timezone", zone.getId());
    }

    /** The first instant at which a cron or interval task may fire. */
    public T startsAt(Instant time) {
        return set("starts_at", time);
    }

    /** The last instant at which a cron or interval task may fire. */
    public T endsAt(Instant time) {
        return set("ends_at", time);
    }

    /** How often a cron or interval task fires at most. */
    public T count(long fires) {
        return set("count", fires);
    }

    public T misfire(Misfire misfire) {
        return set("misfire", misfire);
    }

    public T overlap(Overlap overlap) {
        return set("overlap", overlap);
    }

    public T dst(Dst dst) {
        return set("dst", dst);
    }

    /** Moves each fire of a cron or interval task by a random time up to this. */
    public T jitter(Duration jitter) {
        return set("jitter", jitter);
    }

    /** A watch that has fired fires again, with the occasion {@code return}, when it is touched. */
    public T onReturn(boolean yes) {
        return set("on_return", yes);
    }

    /** How far touches may move the fire of a watch altogether. */
    public T postponeMax(Duration time) {
        return set("postpone_max", time);
    }

    public T to(Target target) {
        return set("target", target);
    }

    public T toQueue(String queue) {
        return to(Target.toQueue(queue));
    }

    /** Sends the payload to this URL with {@code POST}. */
    public T toUrl(String url) {
        return to(Target.toUrl(url));
    }

    public T toHttp(HttpTarget target) {
        return to(Target.toHttp(target));
    }

    /** Runs a statement of a connection. Its parameters are taken from the payload. */
    public T toStatement(String connection, String statement) {
        return to(Target.toStatement(connection, statement));
    }

    /** Runs a statement of a connection. Parameters that {@code params} does not have are taken from the payload. */
    public T toStatement(String connection, String statement, Map<String, ?> params) {
        return to(Target.toStatement(connection, statement, params));
    }

    /** A record, map, list, text, number, boolean or {@link JsonValue}; at most 256 KiB as JSON. */
    public T payload(Object value) {
        return set("payload", JsonValue.of(value));
    }

    /** A payload that is not JSON. */
    public T payload(byte[] bytes, String contentType) {
        set("payload_base64", Base64.getEncoder().encodeToString(bytes));
        return contentType == null ? self() : set("content_type", contentType);
    }

    public T guarantee(Guarantee guarantee) {
        return set("guarantee", guarantee);
    }

    public T retry(RetryPolicy retry) {
        return set("retry", retry);
    }

    /** How long one attempt may take. */
    public T timeout(Duration timeout) {
        return set("timeout", timeout);
    }

    /** How long after its time an attempt still makes sense. */
    public T expiresAfter(Duration time) {
        return set("expires_after", time);
    }

    public T labels(Map<String, String> labels) {
        return set("labels", new LinkedHashMap<>(labels));
    }

    /** Adds a label. */
    public T label(String name, String value) {
        Map<Object, Object> labels = new LinkedHashMap<>();
        if (fields.get("labels") instanceof Map<?, ?> before) {
            labels.putAll(before);
        }
        labels.put(name, value);
        return set("labels", labels);
    }

    /** Creates the task paused: it does not fire until it is resumed. */
    public T paused(boolean yes) {
        return set("paused", yes);
    }

    /** Receives the record of each fire that succeeded. */
    public T onDone(Target target) {
        return set("on_done", target);
    }

    /** Receives the record of each fire that became a dead letter. */
    public T onDead(Target target) {
        return set("on_dead", target);
    }

    /** Sets a field by its name in the API, for a broker that knows more fields than this class. */
    public T field(String name, Object value) {
        return set(name, value);
    }
}
