package dev.punctual;

import java.util.List;

/** What became of a touch of many keys. */
public record TouchManyAnswer(long touched, long created, List<String> missing, List<KeyProblem> problems) {}
