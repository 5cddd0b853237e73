package dev.punctual;

import java.time.Duration;
import java.util.List;

/** The pauses between attempts: one of the three, the others are null. */
public record Backoff(Duration fixed, ExponentialBackoff exponential, List<Duration> list) {
    public static Backoff fixed(Duration pause) {
        return new Backoff(pause, null, null);
    }

    public static Backoff exponential(Duration first, double factor, Duration max) {
        return new Backoff(null, new ExponentialBackoff(first, factor, max), null);
    }

    public static Backoff list(List<Duration> pauses) {
        return new Backoff(null, null, pauses);
    }
}
