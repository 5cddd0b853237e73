package dev.punctual;

import java.time.Instant;
import java.util.List;

/** A worker that is connected or polls. */
public record WorkerInfo(
        String name,
        String address,
        String broker,
        List<String> queues,
        long inFlight,
        long credit,
        Instant since) {}
