package dev.punctual;

/** Why a fire is a dead letter. */
public enum DeadReason {
    EXHAUSTED, REFUSED, EXPIRED, UNKNOWN
}
