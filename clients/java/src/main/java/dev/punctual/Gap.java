package dev.punctual;

/** When a cron fire is due that falls into the hour that a clock change leaves out. */
public enum Gap {
    AFTER, SKIP
}
