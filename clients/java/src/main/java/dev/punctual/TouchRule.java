package dev.punctual;

/**
 * A touch rule: the task that a touch creates for a key that is missing and starts with {@code prefix}, if the touch
 * itself does not say what to create. The longest prefix wins.
 */
public record TouchRule(String prefix, JsonValue create) {
    /** Reads the task as a record or map. */
    public <T> T create(Class<T> type) {
        return create == null ? null : create.as(type);
    }
}
