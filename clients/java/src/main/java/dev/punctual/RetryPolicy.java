package dev.punctual;

/**
 * How often and when a fire is attempted again. What is null has its default: 5 attempts, exponential backoff,
 * jitter 0.1.
 */
public record RetryPolicy(Integer attemptsMax, Backoff backoff, Double jitter) {
    public static RetryPolicy attempts(int attemptsMax) {
        return new RetryPolicy(attemptsMax, null, null);
    }

    public RetryPolicy withBackoff(Backoff backoff) {
        return new RetryPolicy(attemptsMax, backoff, jitter);
    }

    public RetryPolicy withJitter(double jitter) {
        return new RetryPolicy(attemptsMax, backoff, jitter);
    }
}
