package dev.punctual;

/** This attempt is in flight; no further one is made. */
public record Firing(int attempt) implements CancelResult {}
