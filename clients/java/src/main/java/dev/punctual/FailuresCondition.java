package dev.punctual;

import java.time.Duration;

/** At least {@code count} failed attempts within {@code window}. */
public record FailuresCondition(long count, Duration window) {}
