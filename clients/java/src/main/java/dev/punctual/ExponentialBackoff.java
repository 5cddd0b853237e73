package dev.punctual;

import java.time.Duration;

/** Pauses that grow by {@code factor} from {@code first} to {@code max}. */
public record ExponentialBackoff(Duration first, Double factor, Duration max) {}
