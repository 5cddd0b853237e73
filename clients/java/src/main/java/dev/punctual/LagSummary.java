package dev.punctual;

/** Percentiles of lag in milliseconds. */
public record LagSummary(double p50, double p99, double p999, double max) {}
