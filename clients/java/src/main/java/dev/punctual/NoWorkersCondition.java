package dev.punctual;

import java.time.Duration;

/** The queue had no worker for {@code absence}. */
public record NoWorkersCondition(String queue, @JsonName("for") Duration absence) {}
