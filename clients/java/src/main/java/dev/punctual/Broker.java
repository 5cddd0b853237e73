package dev.punctual;

import java.time.Instant;
import java.util.List;

/** A broker of a cluster. {@code clockAheadMs} is how far its clock is ahead of the store's, if it was measured. */
public record Broker(String address, List<Integer> partitions, Instant lastHeartbeat, Long clockAheadMs) {}
