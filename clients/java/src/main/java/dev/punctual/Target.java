package dev.punctual;

import java.util.Map;

/**
 * Where deliveries go: a webhook, a queue, a gRPC method, or a statement, topic, exchange, subject or stream of a
 * connection; the others are null.
 */
public record Target(
        HttpTarget http,
        String queue,
        SqlTarget sql,
        KafkaTarget kafka,
        AmqpTarget amqp,
        NatsTarget nats,
        MqttTarget mqtt,
        RedisStreamTarget redisStream,
        GrpcTarget grpc) {
    public static Target toQueue(String queue) {
        return new Target(null, queue, null, null, null, null, null, null, null);
    }

    public static Target toUrl(String url) {
        return toHttp(HttpTarget.url(url));
    }

    public static Target toHttp(HttpTarget http) {
        return new Target(http, null, null, null, null, null, null, null, null);
    }

    /** A statement whose parameters are taken from the payload. */
    public static Target toStatement(String connection, String statement) {
        return toStatement(connection, statement, null);
    }

    /** A statement with these values of parameters; those that are missing are taken from the payload. */
    public static Target toStatement(String connection, String statement, Map<String, ?> params) {
        return new Target(null, null, new SqlTarget(connection, statement, params), null, null, null, null, null, null);
    }

    public static Target toKafka(KafkaTarget kafka) {
        return new Target(null, null, null, kafka, null, null, null, null, null);
    }

    public static Target toAmqp(AmqpTarget amqp) {
        return new Target(null, null, null, null, amqp, null, null, null, null);
    }

    public static Target toNats(NatsTarget nats) {
        return new Target(null, null, null, null, null, nats, null, null, null);
    }

    public static Target toMqtt(MqttTarget mqtt) {
        return new Target(null, null, null, null, null, null, mqtt, null, null);
    }

    public static Target toRedisStream(RedisStreamTarget stream) {
        return new Target(null, null, null, null, null, null, null, stream, null);
    }

    /** A unary gRPC method, like {@code /shop.Orders/Cancel}. The payload is the message. */
    public static Target toMethod(String url, String method) {
        return new Target(null, null, null, null, null, null, null, null, new GrpcTarget(url, method));
    }
}
