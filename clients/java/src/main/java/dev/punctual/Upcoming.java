package dev.punctual;

import java.time.Instant;

/** A fire time of a cron expression. {@code note} says why a clock change moves it. */
public record Upcoming(Instant fireAt, String local, String note) {}
