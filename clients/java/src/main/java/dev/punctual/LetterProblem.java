package dev.punctual;

/** A dead letter that could not be redriven or deleted. */
public record LetterProblem(String id, Problem problem) {}
