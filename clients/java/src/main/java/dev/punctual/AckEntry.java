package dev.punctual;

/** A delivery to acknowledge, with the result that its history keeps: any JSON of at most 16 KiB, or null for none. */
public record AckEntry(String token, JsonValue result) {}
