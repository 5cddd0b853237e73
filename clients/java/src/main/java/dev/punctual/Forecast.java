package dev.punctual;

import java.time.Duration;
import java.time.Instant;
import java.util.List;

/**
 * Fires expected per step. If it is not {@code complete}, it counts to {@code completeUntil} only. {@code targets} are
 * those with most fires, if they were asked for.
 */
public record Forecast(
        Instant from,
        Duration step,
        boolean complete,
        Instant completeUntil,
        List<Step> steps,
        List<TargetFires> targets) {}
