package dev.punctual.scenarios;

import dev.punctual.Json;
import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The arguments of a step. Those that a verb does not take are an error. */
final class Arguments {
    private final Map<String, Object> left = new LinkedHashMap<>();

    Arguments(Object arguments) {
        if (arguments instanceof Map<?, ?> map) {
            map.forEach((name, value) -> left.put((String) name, value));
        }
    }

    boolean has(String name) {
        return left.containsKey(name);
    }

    /** The argument, or null. */
    Object take(String name) {
        return left.remove(name);
    }

    String text(String name) {
        return (String) take(name);
    }

    String text(String name, String otherwise) {
        return has(name) ? text(name) : otherwise;
    }

    Integer number(String name) {
        Object value = take(name);
        return value == null ? null : ((Number) value).intValue();
    }

    Duration duration(String name) {
        return as(take(name), Duration.class);
    }

    Instant instant(String name) {
        return as(take(name), Instant.class);
    }

    List<?> list(String name) {
        return (List<?>) take(name);
    }

    List<String> texts(String name) {
        return list(name).stream().map(String.class::cast).toList();
    }

    void end(String verb) {
        if (!left.isEmpty()) {
            throw new AssertionError(verb + " does not know the arguments " + left.keySet());
        }
    }

    /** A JSON value as a type of the client. */
    static <T> T as(Object value, Class<T> type) {
        return value == null ? null : Json.read(Json.write(value), type);
    }
}
