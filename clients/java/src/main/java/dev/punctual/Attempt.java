package dev.punctual;

import java.time.Duration;
import java.time.Instant;

/** One try to deliver a fire. */
public record Attempt(
        int attempt,
        Instant at,
        long durationMs,
        Outcome outcome,
        String reason,
        Duration retryIn,
        Integer status,
        Answer answer) {}
