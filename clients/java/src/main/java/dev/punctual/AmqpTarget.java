package dev.punctual;

import java.util.Map;

/**
 * An exchange of AMQP 0.9.1. For the default exchange, whose name is empty, the routing key is the name of a queue.
 */
public record AmqpTarget(String connection, String exchange, String routingKey, Map<String, String> headers) {
    public static AmqpTarget exchange(String connection, String exchange, String routingKey) {
        return new AmqpTarget(connection, exchange, routingKey, null);
    }

    public AmqpTarget withHeaders(Map<String, String> headers) {
        return new AmqpTarget(connection, exchange, routingKey, headers);
    }
}
