package dev.punctual;

/** What a cron schedule does at clock changes. */
public record Dst(Gap gap, Twice overlap) {}
