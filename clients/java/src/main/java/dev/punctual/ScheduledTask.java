package dev.punctual;

import java.time.Instant;

/** The short answer to a schedule call. */
public record ScheduledTask(String id, Instant fireAt, long version) {}
