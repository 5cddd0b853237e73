package dev.punctual;

import java.util.Map;

/** A webhook. */
public record HttpTarget(
        String url,
        HttpMethod method,
        Map<String, String> headers,
        SuccessRule success,
        RefuseRule refuse) {
    /** A webhook that is called with {@code POST}. */
    public static HttpTarget url(String url) {
        return new HttpTarget(url, null, null, null, null);
    }

    public HttpTarget withMethod(HttpMethod method) {
        return new HttpTarget(url, method, headers, success, refuse);
    }

    public HttpTarget withHeaders(Map<String, String> headers) {
        return new HttpTarget(url, method, headers, success, refuse);
    }

    public HttpTarget withSuccess(SuccessRule success) {
        return new HttpTarget(url, method, headers, success, refuse);
    }

    public HttpTarget withRefuse(RefuseRule refuse) {
        return new HttpTarget(url, method, headers, success, refuse);
    }
}
