package dev.punctual;

import java.time.Instant;

/** The task had fired before. */
public record AlreadyFired(Instant at) implements CancelResult {}
