package dev.punctual;

import java.time.Instant;

/** Which tasks an operation is about; the empty filter is every task of the namespace. */
public record TaskFilter(State state, Kind kind, String keyPrefix, String label, Instant from, Instant to) {
    public static TaskFilter all() {
        return new TaskFilter(null, null, null, null, null, null);
    }

    public TaskFilter withState(State state) {
        return new TaskFilter(state, kind, keyPrefix, label, from, to);
    }

    public TaskFilter withKind(Kind kind) {
        return new TaskFilter(state, kind, keyPrefix, label, from, to);
    }

    public TaskFilter withKeyPrefix(String keyPrefix) {
        return new TaskFilter(state, kind, keyPrefix, label, from, to);
    }

    public TaskFilter withLabel(String name, String value) {
        return new TaskFilter(state, kind, keyPrefix, name + ":" + value, from, to);
    }

    public TaskFilter withFrom(Instant from) {
        return new TaskFilter(state, kind, keyPrefix, label, from, to);
    }

    public TaskFilter withTo(Instant to) {
        return new TaskFilter(state, kind, keyPrefix, label, from, to);
    }
}
