package dev.punctual;

/** Which dead letters: those with this reason, this target, or both. */
public record DeadGroupFilter(String reason, String target) {}
