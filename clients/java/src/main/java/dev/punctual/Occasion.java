package dev.punctual;

/** Why there is a fire: the schedule, a caller who asked for it, or a silent watch that was touched. */
public enum Occasion {
    DUE, MANUAL, RETURN
}
