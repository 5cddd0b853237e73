package dev.punctual;

import java.time.Duration;
import java.time.Instant;
import java.util.List;

/** What ended in each step of the last hours. */
public record Series(
        Instant from,
        Duration step,
        Instant since,
        List<Integer> lagBoundsMs,
        List<SeriesPoint> points) {}
