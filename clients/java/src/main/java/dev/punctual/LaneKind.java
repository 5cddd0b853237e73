package dev.punctual;

/** The kind of the target of a lane. Webhooks and gRPC methods are {@code HTTP}. */
public enum LaneKind {
    HTTP, QUEUE, CONNECTION, MAIL
}
