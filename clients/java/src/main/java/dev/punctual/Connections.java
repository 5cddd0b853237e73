package dev.punctual;

import java.util.List;

/** The connections of a broker by name, and its sources. */
public record Connections(List<Connection> connections, List<Source> sources) {}
