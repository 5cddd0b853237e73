package dev.punctual;

/** The kind of a schedule. {@code RECURRING} is {@code CRON} or {@code EVERY}. */
public enum Kind {
    ONCE, CRON, EVERY, WATCH, RECURRING
}
