package dev.punctual;

/** A topic of MQTT. {@code qos} is 1, 2 or null, which is 1; {@code retain} may be null. */
public record MqttTarget(String connection, String topic, Integer qos, Boolean retain) {}
