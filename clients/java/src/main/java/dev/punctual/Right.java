package dev.punctual;

/** A right of a token in a namespace. */
public enum Right {
    READ, PRODUCE, CONSUME, OPERATE
}
