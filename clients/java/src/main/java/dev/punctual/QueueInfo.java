package dev.punctual;

/** A queue with what waits in it. {@code more}: there are more waiting tasks than were counted. */
public record QueueInfo(
        String name,
        long waiting,
        boolean more,
        long inFlight,
        long workers,
        long oldestOverdueMs) {}
