package dev.punctual;

/** How often a cron fire is due in the hour that a clock change repeats. */
public enum Twice {
    ONCE, BOTH
}
