package dev.punctual;

/** A stream of Redis, which keeps about {@code maxlen} entries, or all if it is null. */
public record RedisStreamTarget(String connection, String stream, Long maxlen) {}
