package dev.punctual;

import java.time.Instant;

/** The last failed attempt of a lane. {@code retryAt}: the receiver asked for a pause. */
public record LaneFailure(Instant at, String reason, Instant retryAt) {}
