package dev.punctual;

import java.util.List;

/** The expected fires of one target, by step. */
public record TargetFires(String target, List<Long> fires) {}
