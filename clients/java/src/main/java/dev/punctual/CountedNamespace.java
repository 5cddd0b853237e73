package dev.punctual;

/** A namespace with the counts of the store. */
public record CountedNamespace(
        String name,
        long accepted,
        long scheduled,
        long paused,
        long done,
        long dead,
        long cancelled,
        long deadLetters) {}
