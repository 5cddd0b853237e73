package dev.punctual;

import java.util.Map;

/**
 * An exchange of AMQP 0.9.1, like RabbitMQ. With an empty exchange, the routing key is the name of a queue. {@code headers}
 * may be null.
 */
public record AmqpTarget(String connection, String exchange, String routingKey, Map<String, String> headers) {}
