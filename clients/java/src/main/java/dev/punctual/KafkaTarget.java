package dev.punctual;

import java.util.Map;

/** A topic of Kafka. The key of a record is that of the task if {@code key} is null; {@code headers} may be null. */
public record KafkaTarget(String connection, String topic, String key, Map<String, String> headers) {}
