package dev.punctual;

import java.util.Map;

/**
 * A statement that the configuration of the broker has, on a connection of it. {@code params} has values of
 * parameters, by name; those that are missing are taken from the payload. It may be null.
 */
public record SqlTarget(String connection, String statement, Map<String, ?> params) {}
