package dev.punctual;

import java.time.Duration;

/** More than the share {@code over} of at least {@code min} attempts failed within {@code window}. */
public record FailureShareCondition(double over, long min, Duration window) {}
