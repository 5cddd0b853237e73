package dev.punctual;

/** Where deliveries go: a webhook or a queue; the other one is null. */
public record Target(HttpTarget http, String queue) {
    public static Target toQueue(String queue) {
        return new Target(null, queue);
    }

    public static Target toUrl(String url) {
        return toHttp(HttpTarget.url(url));
    }

    public static Target toHttp(HttpTarget http) {
        return new Target(http, null);
    }
}
