package dev.punctual;

/** A subject of NATS JetStream. */
public record NatsTarget(String connection, String subject) {}
