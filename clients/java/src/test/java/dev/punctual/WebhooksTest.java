package dev.punctual;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.sun.net.httpserver.HttpServer;
import dev.punctual.support.Await;
import dev.punctual.support.Broker;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.Test;

final class WebhooksTest {
    private static final String SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    @Test
    void aSignedWebhookIsAcceptedAndItsOutcomeReported() throws Exception {
        List<Webhook> received = new CopyOnWriteArrayList<>();
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", Webhooks.secrets(SECRET).handler(webhook -> {
            received.add(webhook);
            if (webhook.attempt() == 1) {
                throw Retry.after(Duration.ZERO);
            }
            if (webhook.key().equals("gone")) {
                throw Refuse.because("no such order");
            }
        }));
        server.start();
        String url = "http://127.0.0.1:" + server.getAddress().getPort() + "/hook";
        try (Broker broker = Broker.serve("--signing-secret", "shop=" + SECRET)) {
            Punctual p = Punctual.connect(broker.url()).namespace("shop");
            p.schedule("order-1").in(Duration.ZERO).toUrl(url).payload(List.of("ü")).send();
            p.schedule("gone").in(Duration.ZERO).toUrl(url).send();
            Await.until("two ends", () -> p.fires().toList().size() == 2);
            assertEquals(FireEnd.DONE, p.fires("order-1").get(0).end());
            assertEquals(FireEnd.DEAD, p.fires("gone").get(0).end());
        } finally {
            server.stop(0);
        }
        Webhook first = received.stream().filter(w -> w.key().equals("order-1")).findFirst().orElseThrow();
        assertEquals("[\"ü\"]", new String(first.body(), StandardCharsets.UTF_8));
        assertEquals("shop", first.namespace());
        assertEquals(4, received.size());
    }

    @Test
    void aRequestWithoutASignatureIsAnsweredWith401() throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        List<Webhook> received = new CopyOnWriteArrayList<>();
        server.createContext("/", Webhooks.secrets(SECRET).handler(received::add));
        server.start();
        URI url = URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/hook");
        int status = HttpClient.newHttpClient().send(HttpRequest.newBuilder(url)
            .POST(HttpRequest.BodyPublishers.ofString("{}")).build(), HttpResponse.BodyHandlers.discarding()).statusCode();
        server.stop(0);
        assertEquals(401, status);
        assertEquals(List.of(), received);
    }
}
