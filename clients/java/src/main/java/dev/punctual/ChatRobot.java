package dev.punctual;

/** The robot of a chat. The secret is never answered. */
public record ChatRobot(ChatKind kind, String url, String secret) {}
