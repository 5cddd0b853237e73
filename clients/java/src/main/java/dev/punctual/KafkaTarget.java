package dev.punctual;

import java.util.Map;

/** A topic of Kafka. A record has the key of its task if {@code key} is null. */
public record KafkaTarget(String connection, String topic, String key, Map<String, String> headers) {
    public static KafkaTarget topic(String connection, String topic) {
        return new KafkaTarget(connection, topic, null, null);
    }

    public KafkaTarget withKey(String key) {
        return new KafkaTarget(connection, topic, key, headers);
    }

    public KafkaTarget withHeaders(Map<String, String> headers) {
        return new KafkaTarget(connection, topic, key, headers);
    }
}
