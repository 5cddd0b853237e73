package dev.punctual;

/** What became of one task of many that were cancelled: a result, or a problem. */
public record CancelOutcome(String key, String id, CancelResult result, Problem problem) {}
