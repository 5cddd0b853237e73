package dev.punctual;

import java.time.Instant;
import java.util.List;

/**
 * One second of a live stream. {@code brokers} and {@code leader} are those of the cluster, in the stream of all
 * namespaces.
 */
public record LiveSecond(
        Instant at,
        LiveStates counts,
        long waiting,
        long inFlight,
        Long oldestOverdueMs,
        LiveRates rates,
        LagSummary lagMs,
        long attempts,
        String leader,
        List<Broker> brokers) {}
