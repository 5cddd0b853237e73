package dev.punctual;

/** The task never fires, whatever fails afterwards. */
public record Cancelled() implements CancelResult {}
