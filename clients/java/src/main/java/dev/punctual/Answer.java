package dev.punctual;

/** What a webhook responded: the beginning of its body as {@code text}, or as {@code base64} if it is not UTF-8. */
public record Answer(String contentType, String text, String base64, boolean truncated) {}
