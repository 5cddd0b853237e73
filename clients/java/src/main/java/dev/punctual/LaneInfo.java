package dev.punctual;

import java.time.Instant;

/**
 * What waits for a target and what is in flight to it. {@code more}: there are more waiting tasks than were counted.
 * {@code since}: when the last worker left, or the connection went away. {@code failed} counts the attempts that failed in
 * the last 15 minutes.
 */
public record LaneInfo(
        LaneKind kind,
        String target,
        String connection,
        LaneState state,
        Instant since,
        long waiting,
        boolean more,
        long inFlight,
        long capacity,
        long oldestOverdueMs,
        long failed,
        LaneFailure lastFailure) {}
