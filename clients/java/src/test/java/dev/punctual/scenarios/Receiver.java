package dev.punctual.scenarios;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import dev.punctual.Json;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** An HTTP receiver with a list of answers; the last one is repeated. */
final class Receiver implements AutoCloseable {
    private final List<?> answers;
    private final HttpServer server;
    private final List<Map<String, Object>> requests = new ArrayList<>();

    Receiver(List<?> answers) throws IOException {
        this.answers = answers;
        server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", exchange -> {
            try (exchange) {
                answer(exchange);
            }
        });
        server.start();
    }

    String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort() + "/hook";
    }

    List<Map<String, Object>> requests() {
        synchronized (requests) {
            return List.copyOf(requests);
        }
    }

    private void answer(HttpExchange exchange) throws IOException {
        Map<String, Object> headers = new LinkedHashMap<>();
        exchange.getRequestHeaders().forEach((name, values) -> headers.put(name.toLowerCase(Locale.ROOT), values.get(0)));
        String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
        Map<?, ?> answer;
        synchronized (requests) {
            answer = (Map<?, ?>) answers.get(Math.min(requests.size(), answers.size() - 1));
            requests.add(Map.of("method", exchange.getRequestMethod(), "path", exchange.getRequestURI().toString(),
                "headers", headers, "body", body));
        }
        if (answer.get("headers") instanceof Map<?, ?> more) {
            more.forEach((name, value) -> exchange.getResponseHeaders().set((String) name, (String) value));
        }
        Object text = answer.get("body");
        byte[] bytes = text == null ? new byte[0]
            : (text instanceof String string ? string : Json.write(text)).getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(((Number) answer.get("status")).intValue(), bytes.length == 0 ? -1 : bytes.length);
        if (bytes.length > 0) {
            exchange.getResponseBody().write(bytes);
        }
    }

    @Override
    public void close() {
        server.stop(0);
    }
}
