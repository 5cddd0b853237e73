package dev.punctual;

import java.time.Instant;

/** The fire that was redriven. */
public record RedrivenFire(String fireId, Instant at) {}
