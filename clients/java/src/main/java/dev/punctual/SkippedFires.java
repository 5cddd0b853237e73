package dev.punctual;

import java.time.Instant;

/** Fires that were left out. */
public record SkippedFires(int fires, Instant until, SkipReason reason) {}
