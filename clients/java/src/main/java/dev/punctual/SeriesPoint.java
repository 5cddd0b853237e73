package dev.punctual;

import java.time.Instant;
import java.util.List;

/** What ended in one step. {@code lag} counts first attempts by bucket of lag. */
public record SeriesPoint(Instant at, long done, long failed, long dead, List<Long> lag, LagSummary lagMs) {}
