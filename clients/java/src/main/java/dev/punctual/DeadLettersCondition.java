package dev.punctual;

/** More than {@code over} dead letters. */
public record DeadLettersCondition(long over) {}
