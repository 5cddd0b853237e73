package dev.punctual;

/** What came of an attempt. */
public enum Outcome {
    ACKED, FAILED, REFUSED, EXPIRED
}
