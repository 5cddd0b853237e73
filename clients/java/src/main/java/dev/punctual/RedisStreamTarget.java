package dev.punctual;

/** A stream of Redis, which keeps about {@code maxlen} entries; all if that is null. */
public record RedisStreamTarget(String connection, String stream, Long maxlen) {
    public static RedisStreamTarget stream(String connection, String stream) {
        return new RedisStreamTarget(connection, stream, null);
    }

    public RedisStreamTarget withMaxlen(long entries) {
        return new RedisStreamTarget(connection, stream, entries);
    }
}
