package dev.punctual;

import java.time.Instant;

/** The short answer to a touch. */
public record TouchedTask(Instant fireAt, long version) {}
