package dev.punctual;

import java.util.List;

/** Whether a broker is ready, and why not. */
public record Ready(boolean ready, List<String> reasons, List<String> warnings) {}
