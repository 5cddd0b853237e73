package dev.punctual;

import java.util.List;

/** What became of a redrive; {@code more} says that further calls are needed. */
public record Redriven(long redriven, List<LetterProblem> problems, boolean more) {}
