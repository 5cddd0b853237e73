package dev.punctual;

/** This attempt is in flight and cannot be called back. */
public record Firing(int attempt) implements CancelResult {}
