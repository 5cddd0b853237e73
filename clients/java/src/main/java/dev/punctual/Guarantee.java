package dev.punctual;

/**
 * How often a fire may be delivered. {@code EXACTLY_ONCE} is at least once with a stable fire id, on which a worker
 * deduplicates.
 */
public enum Guarantee {
    AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE
}
