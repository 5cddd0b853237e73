package dev.punctual;

/** A unary gRPC method, like {@code /shop.Orders/Cancel}. The payload is the message. */
public record GrpcTarget(String url, String method) {}
