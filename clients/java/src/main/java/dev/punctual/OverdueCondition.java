package dev.punctual;

import java.time.Duration;

/** A task waits longer than {@code over} after its time. */
public record OverdueCondition(Duration over) {}
