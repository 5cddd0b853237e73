package dev.punctual;

import java.util.List;

/** What an operation would change: how many tasks ({@code exact}, or a lower bound), and the first 20. */
public record DryRun(long matched, boolean exact, List<Task> sample) {}
