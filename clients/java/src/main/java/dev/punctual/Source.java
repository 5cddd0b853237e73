package dev.punctual;

import java.time.Instant;

/**
 * A table of a connection whose rows become tasks. {@code readAt} is null if the broker that answers has not read it;
 * {@code lagMs} is how long the oldest row of the last read had waited; {@code problem} says why it cannot be read.
 */
public record Source(
        String name,
        String namespace,
        Instant readAt,
        long applied,
        long rejected,
        long lagMs,
        String problem) {}
