package dev.punctual;

import java.time.Instant;
import java.util.List;

/**
 * A database of the broker's configuration that tasks can name. {@code problem} says why it is away, {@code waiting}
 * counts the deliveries that wait for a session, and {@code confirmed} and {@code failed} those since the broker started.
 * The tasks of {@code namespaces} may name the statements that {@code allow} matches.
 */
public record Connection(
        String name,
        String kind,
        String address,
        ConnectionState state,
        Instant since,
        String problem,
        long sessions,
        long waiting,
        long inFlight,
        long confirmed,
        long failed,
        List<String> namespaces,
        List<String> allow,
        List<String> statements) {}
