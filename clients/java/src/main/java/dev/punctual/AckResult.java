package dev.punctual;

/**
 * What became of an ack. {@code STALE}: the attempt was over before. {@code REJECTED}: the result is not allowed,
 * and the lease continues.
 */
public enum AckResult {
    ACKED, STALE, REJECTED
}
