package dev.punctual;

import java.util.Map;

/** Where deliveries go: a webhook, a queue or a statement of a database; the others are null. */
public record Target(HttpTarget http, String queue, SqlTarget sql) {
    public static Target toQueue(String queue) {
        return new Target(null, queue, null);
    }

    public static Target toUrl(String url) {
        return toHttp(HttpTarget.url(url));
    }

    public static Target toHttp(HttpTarget http) {
        return new Target(http, null, null);
    }

    /** A statement whose parameters are taken from the payload. */
    public static Target toStatement(String connection, String statement) {
        return toStatement(connection, statement, null);
    }

    /** A statement with these values of parameters; those that are missing are taken from the payload. */
    public static Target toStatement(String connection, String statement, Map<String, ?> params) {
        return new Target(null, null, new SqlTarget(connection, statement, params));
    }
}
