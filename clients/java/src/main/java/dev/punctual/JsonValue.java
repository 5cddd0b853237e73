package dev.punctual;

import java.nio.charset.StandardCharsets;

/**
 * A JSON value as it was received: a payload or a result. It is parsed when it is read, so a list of tasks costs nothing
 * for payloads that are not looked at.
 */
public final class JsonValue {
    private final String text;

    private JsonValue(String text) {
        this.text = text;
    }

    /** The value of JSON text. */
    public static JsonValue parse(String text) {
        new JsonReader(text.getBytes(StandardCharsets.UTF_8)).skipDocument();
        return new JsonValue(text.strip());
    }

    /** The JSON of a record, map, list, text, number, boolean or null. */
    public static JsonValue of(Object value) {
        return value instanceof JsonValue json ? json : new JsonValue(Json.write(value));
    }

    /** A value that a reader has already checked. */
    static JsonValue checked(String text) {
        return new JsonValue(text);
    }

    /** Reads the value as a record, map, list, text, number or boolean. */
    public <T> T as(Class<T> type) {
        return Json.read(text, type);
    }

    /** The value as maps, lists, texts, numbers, booleans and null. */
    public Object value() {
        return Json.read(text, Object.class);
    }

    public boolean isNull() {
        return text.equals("null");
    }

    /** The JSON text. */
    @Override
    public String toString() {
        return text;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof JsonValue json && java.util.Objects.equals(json.value(), value());
    }

    @Override
    public int hashCode() {
        Object value = value();
        return value == null ? 0 : value.hashCode();
    }
}
