package dev.punctual;

import java.time.Duration;

/** The namespace has used up its share, and nothing was done: try again after {@link #retryAfter()}. */
public final class ThrottledException extends PunctualException {
    private static final long serialVersionUID = 1;

    private final Duration retryAfter;

    ThrottledException(Problem problem, Duration retryAfter) {
        super(problem);
        this.retryAfter = retryAfter;
    }

    /** The pause that the broker asked for; null if it did not say. */
    public Duration retryAfter() {
        return retryAfter;
    }
}
