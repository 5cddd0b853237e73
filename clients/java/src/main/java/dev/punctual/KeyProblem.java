package dev.punctual;

/** A key that could not be touched. */
public record KeyProblem(String key, Problem problem) {}
