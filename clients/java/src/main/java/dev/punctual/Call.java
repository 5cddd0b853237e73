package dev.punctual;

import java.nio.charset.StandardCharsets;
import java.net.URLEncoder;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** One call of the API. {@code idempotent} says that it may be repeated although it may have been carried out. */
final class Call {
    private final String method;
    private final String path;
    private final String token;
    private final List<String> headers = new ArrayList<>();
    private byte[] body;
    private String contentType = "application/json";
    private boolean idempotent;
    private boolean once;
    private int statusAllowed;
    private Duration wait = Duration.ZERO;
    private String address;

    Call(String method, String path, String token) {
        this.method = method;
        this.path = path;
        this.token = token;
        this.idempotent = !method.equals("POST");
    }

    static Call get(String path, String token) {
        return new Call("GET", path, token);
    }

    Call body(Object value) {
        return bytes(Json.bytes(value), "application/json");
    }

    Call bytes(byte[] bytes, String type) {
        body = bytes;
        contentType = type;
        return this;
    }

    Call header(String name, String value) {
        headers.add(name);
        headers.add(value);
        return this;
    }

    Call idempotent(boolean yes) {
        idempotent = yes;
        return this;
    }

    /** Is not repeated whatever the failure: the caller has a loop of its own. */
    Call onlyOnce() {
        once = true;
        return this;
    }

    /** A status that is an answer although it is not 2xx. */
    Call allow(int status) {
        statusAllowed = status;
        return this;
    }

    /** The time that the broker is asked to wait before it answers. */
    Call waitFor(Duration time) {
        wait = time;
        return this;
    }

    /** Sends the call to this broker only; null for any. */
    Call at(String url) {
        address = url;
        return this;
    }

    String method() {
        return method;
    }

    String path() {
        return path;
    }

    String token() {
        return token;
    }

    List<String> headers() {
        return headers;
    }

    byte[] body() {
        return body;
    }

    String contentType() {
        return contentType;
    }

    boolean idempotent() {
        return idempotent;
    }

    boolean once() {
        return once;
    }

    int statusAllowed() {
        return statusAllowed;
    }

    Duration waiting() {
        return wait;
    }

    String address() {
        return address;
    }

    /** A segment of a path, or a value of a query, with everything encoded that is not plain. */
    static String encode(String text) {
        String encoded = URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
        // As whole segments these would be taken as parts of a path.
        return encoded.equals(".") || encoded.equals("..") ? encoded.replace(".", "%2E") : encoded;
    }
}
