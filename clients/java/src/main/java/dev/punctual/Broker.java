package dev.punctual;

import java.time.Instant;
import java.util.List;

/** A broker of a cluster. */
public record Broker(String address, List<Integer> partitions, Instant lastHeartbeat) {}
