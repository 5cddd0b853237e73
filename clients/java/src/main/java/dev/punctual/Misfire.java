package dev.punctual;

/** What happens with fires that came too late. */
public enum Misfire {
    FIRE_ONCE, FIRE_ALL, SKIP
}
