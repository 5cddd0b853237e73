package dev.punctual;

import java.time.Duration;

/** The 99th percentile of lag within {@code window} is above {@code p99Over}. */
public record LagCondition(@JsonName("p99_over") Duration p99Over, Duration window) {}
