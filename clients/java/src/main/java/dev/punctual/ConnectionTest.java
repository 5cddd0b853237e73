package dev.punctual;

/** Whether a connection works, and why not. */
public record ConnectionTest(String name, boolean works, String problem) {}
