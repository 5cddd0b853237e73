package dev.punctual;

import java.time.Instant;

/**
 * A call of an operator that succeeded. {@code call} is its name in the OpenAPI document, {@code changed} how many tasks
 * or dead letters a call about many has changed.
 */
public record Action(Instant at, String call, String by, String name, String detail, Long changed) {}
