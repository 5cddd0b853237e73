package dev.punctual;

import java.util.UUID;

/**
 * Creates or replaces a task: {@code p.schedule("order-1").in(Duration.ofMinutes(15)).toQueue("unpaid").send()}. Nothing
 * is sent before {@link #send} or {@link #sendMinimal}.
 */
public final class ScheduleCall extends TaskFields<ScheduleCall> {
    private final Punctual client;
    private final String key;
    private String ifMatch;
    private boolean createOnly;
    private String idempotencyKey;

    ScheduleCall(Punctual client, String key) {
        this.client = client;
        this.key = key;
    }

    @Override
    ScheduleCall self() {
        return this;
    }

    /** Creates only: a {@link ConflictException} if the key is taken. */
    public ScheduleCall createOnly() {
        createOnly = true;
        return this;
    }

    /** Replaces only this version: a {@link ConflictException} if the task has another one. */
    public ScheduleCall ifVersion(long version) {
        ifMatch = "\"" + version + "\"";
        return this;
    }

    /**
     * The idempotency key of a task without a key: a call with the same one creates once within a day. By default each
     * call has a random one, so that it can be repeated after a broken connection.
     */
    public ScheduleCall idempotencyKey(String key) {
        idempotencyKey = key;
        return this;
    }

    /** Sends the call and returns the task. */
    public Task send() {
        return client.send(call()).as(Task.class);
    }

    /** Sends the call and returns the id, the time and the version only, which is faster. */
    public ScheduledTask sendMinimal() {
        return client.send(call().header("prefer", "return=minimal")).as(ScheduledTask.class);
    }

    private Call call() {
        Call call = key == null ? client.call("POST", "/tasks") : client.call("PUT", "/tasks/" + Call.encode(key));
        call.body(fields());
        if (key == null) {
            String once = idempotencyKey == null ? UUID.randomUUID().toString() : idempotencyKey;
            call.header("idempotency-key", once).idempotent(true);
        } else if (idempotencyKey != null) {
            call.header("idempotency-key", idempotencyKey);
        }
        // A conditional call that was carried out would fail when it is repeated.
        if (createOnly) {
            call.header("if-none-match", "*").idempotent(false);
        }
        if (ifMatch != null) {
            call.header("if-match", ifMatch).idempotent(false);
        }
        return call;
    }
}
