package dev.punctual;

import java.time.Duration;

/** Thrown by a handler: the attempt failed and is to be repeated. */
public final class Retry extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final transient Duration after;

    private Retry(String reason, Duration after) {
        super(reason, null, false, false);
        this.after = after;
    }

    /** Repeat it after this time, instead of the backoff of the task. */
    public static Retry after(Duration time) {
        return new Retry("retry", time);
    }

    /** Repeat it after the backoff of the task. */
    public static Retry because(String reason) {
        return new Retry(reason, null);
    }

    /** The same with a reason, which the history of the task keeps. */
    public Retry reason(String reason) {
        return new Retry(reason, after);
    }

    Duration after() {
        return after;
    }
}
