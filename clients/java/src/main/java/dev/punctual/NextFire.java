package dev.punctual;

import java.time.Instant;

/** A coming fire of a task. */
public record NextFire(Instant fireAt, String local, String why) {}
