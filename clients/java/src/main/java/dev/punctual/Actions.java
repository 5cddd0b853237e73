package dev.punctual;

import java.time.Instant;
import java.util.List;

/** What operators did, newest first; all since {@code since}, if all brokers have answered ({@code complete}). */
public record Actions(List<Action> actions, Instant since, boolean complete) {}
