package dev.punctual;

/** What became of one ack. */
public record AckedOne(String token, AckResult result, Problem problem) {}
