package dev.punctual;

/** A topic of MQTT. {@code qos} is 1 if it is null, or 2. */
public record MqttTarget(String connection, String topic, Integer qos, Boolean retain) {
    public static MqttTarget topic(String connection, String topic) {
        return new MqttTarget(connection, topic, null, null);
    }

    public MqttTarget withQos(int qos) {
        return new MqttTarget(connection, topic, qos, retain);
    }

    public MqttTarget withRetain(boolean retain) {
        return new MqttTarget(connection, topic, qos, retain);
    }
}
