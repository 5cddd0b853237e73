package dev.punctual;

import java.time.Instant;

/** The fires that are expected in one step of a forecast. */
public record Step(Instant from, long fires) {}
