package dev.punctual;

/** What happens with a fire that comes while the previous one is in flight. */
public enum Overlap {
    ALLOW, SKIP, QUEUE_ONE
}
