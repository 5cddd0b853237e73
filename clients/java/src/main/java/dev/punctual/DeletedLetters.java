package dev.punctual;

import java.util.List;

/** What became of a deletion of dead letters; {@code more} says that further calls are needed. */
public record DeletedLetters(long deleted, List<LetterProblem> problems, boolean more) {}
