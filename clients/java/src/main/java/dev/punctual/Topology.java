package dev.punctual;

import java.util.List;

/** The brokers of a cluster and what each owns. */
public record Topology(String leader, List<Broker> brokers) {}
