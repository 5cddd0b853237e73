package dev.punctual;

/** Ends per second over the last five seconds. */
public record LiveRates(double done, double failed, double dead) {}
