package dev.punctual;

/** There was no such task, or its history is past its retention. {@code problem} is null in a batch. */
public record NotFound(Problem problem) implements CancelResult {}
