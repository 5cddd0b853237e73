package dev.punctual;

import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;

/**
 * Sends calls to brokers. A call is repeated only if that is safe: after a 503 that says that nothing was done, after a
 * 429, and for idempotent calls after a broken connection or {@code urn:punctual:lost}. After a failure the next address
 * is tried at once; there is a pause when all of them have failed. Tries and total time are bounded.
 *
 * <p>The brokers of the cluster are learned from {@code GET /v1/topology}, which is read in the background at most every
 * {@link #TOPOLOGY_EVERY}; they are tried after the addresses that the caller gave.
 */
final class Transport {
    /** How often the topology is read again while calls are made. */
    private static final Duration TOPOLOGY_EVERY = Duration.ofSeconds(10);
    /** More brokers than this are not remembered: a cluster is smaller. */
    private static final int ADDRESSES_MAX = 64;
    private static final Duration PAUSE_FIRST = Duration.ofMillis(50);
    private static final Duration PAUSE_MAX = Duration.ofSeconds(2);
    /** How much of an answer that is not a problem document is shown. */
    private static final int ERROR_TEXT_MAX = 200;

    private final Options options;
    private final HttpClient http;
    private final List<String> given;
    private final AtomicBoolean learning = new AtomicBoolean();
    private volatile List<String> addresses;
    private volatile int current;
    private volatile long learnedAt = System.nanoTime() - TOPOLOGY_EVERY.toNanos();

    /** How often (at each address) and how long calls are tried. */
    record Options(List<String> urls, Duration connectTimeout, Duration timeout, int triesMax, Duration timeMax,
        boolean learnTopology) {}

    Transport(Options options) {
        this.options = options;
        this.given = options.urls();
        this.addresses = given;
        this.http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(options.connectTimeout()).followRedirects(HttpClient.Redirect.NEVER).build();
    }

    /** The addresses that are tried, those of the caller first. */
    List<String> addresses() {
        return addresses;
    }

    boolean learnsTopology() {
        return options.learnTopology();
    }

    String scheme() {
        return given.get(0).startsWith("https") ? "https" : "http";
    }

    Reply send(Call call) {
        if (call.address() != null) {
            return attempts(call, List.of(call.address()), true);
        }
        Reply reply = attempts(call, null, false);
        learnSoon(call.token());
        return reply;
    }

    private Reply attempts(Call call, List<String> pinned, boolean one) {
        long deadline = System.nanoTime() + options.timeMax().toNanos();
        int inARow = 0;
        PunctualException last = null;
        for (int tries = 1;; tries++) {
            List<String> list = one ? pinned : addresses;
            String address = list.get(Math.floorMod(current, list.size()));
            Duration asked = null;
            try {
                return once(call, address);
            } catch (ThrottledException e) {
                last = e;
                asked = e.retryAfter() == null ? PAUSE_FIRST : e.retryAfter();
            } catch (UnavailableException e) {
                last = e;
            } catch (LostException e) {
                last = e;
                if (!call.idempotent()) {
                    throw e;
                }
            }
            if (asked == null && !one) {
                current = Math.floorMod(current + 1, list.size());
            }
            inARow++;
            Duration pause = asked != null ? asked : inARow % list.size() == 0 ? pause(inARow / list.size()) : Duration.ZERO;
            boolean over = System.nanoTime() + pause.toNanos() - deadline > 0;
            if (tries >= options.triesMax() * list.size() || over || call.once()) {
                throw last;
            }
            sleep(pause, last);
        }
    }

    private static Duration pause(int round) {
        long millis = Math.min(PAUSE_MAX.toMillis(), PAUSE_FIRST.toMillis() << Math.min(round - 1, 16));
        return Duration.ofMillis(millis / 2 + ThreadLocalRandom.current().nextLong(millis / 2 + 1));
    }

    private static void sleep(Duration pause, PunctualException last) {
        try {
            Thread.sleep(pause.toMillis());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw last;
        }
    }

    private Reply once(Call call, String address) {
        HttpResponse<byte[]> response;
        try {
            response = http.send(request(call, address).build(), HttpResponse.BodyHandlers.ofByteArray());
        } catch (ConnectException | java.net.http.HttpConnectTimeoutException e) {
            throw new UnavailableException(PunctualException.noAnswer("about:blank",
                "cannot connect to " + address + reason(e)));
        } catch (IOException e) {
            throw new LostException(PunctualException.noAnswer("urn:punctual:lost",
                "no answer of " + address + reason(e) + "; it is not known whether the call was carried out"));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new LostException(PunctualException.noAnswer("urn:punctual:lost",
                "interrupted; it is not known whether the call was carried out"));
        }
        int status = response.statusCode();
        if (status >= 200 && status < 300 || status == call.statusAllowed()) {
            return new Reply(status, response.body());
        }
        throw PunctualException.of(problem(status, response.body()), retryAfter(response));
    }

    private static String reason(IOException e) {
        return e.getMessage() == null ? "" : ": " + e.getMessage();
    }

    private static Problem problem(int status, byte[] body) {
        try {
            Problem problem = Json.read(body, Problem.class);
            if (problem != null && problem.type() != null && problem.status() != 0) {
                return problem;
            }
        } catch (RuntimeException e) {
            // Not a problem document: something between the client and the broker answered.
        }
        String text = new String(body, 0, Math.min(body.length, ERROR_TEXT_MAX), StandardCharsets.UTF_8);
        return PunctualException.unreadable(status, "status " + status + ": " + text);
    }

    private static Duration retryAfter(HttpResponse<?> response) {
        try {
            return response.headers().firstValue("retry-after").map(s -> Duration.ofSeconds(Long.parseLong(s.trim())))
                .orElse(null);
        } catch (NumberFormatException e) {
            return null;
        }
    }

    private HttpRequest.Builder request(Call call, String address) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(address + call.path()))
            .timeout(options.timeout().plus(call.waiting()));
        if (call.token() != null) {
            request.header("authorization", "Bearer " + call.token());
        }
        for (int i = 0; i < call.headers().size(); i += 2) {
            request.header(call.headers().get(i), call.headers().get(i + 1));
        }
        if (call.body() == null) {
            return request.method(call.method(), HttpRequest.BodyPublishers.noBody());
        }
        return request.header("content-type", call.contentType())
            .method(call.method(), HttpRequest.BodyPublishers.ofByteArray(call.body()));
    }

    /** The lines of a stream of server-sent events. Closing the stream closes the connection. */
    Stream<String> lines(Call call) {
        List<String> list = addresses;
        String address = list.get(Math.floorMod(current, list.size()));
        try {
            HttpResponse<Stream<String>> response = http.send(request(call, address).build(),
                HttpResponse.BodyHandlers.ofLines());
            if (response.statusCode() != 200) {
                try (Stream<String> body = response.body()) {
                    byte[] text = String.join("\n", body.limit(ERROR_TEXT_MAX).toList()).getBytes(StandardCharsets.UTF_8);
                    throw PunctualException.of(problem(response.statusCode(), text), retryAfter(response));
                }
            }
            return response.body();
        } catch (IOException e) {
            throw new UnavailableException(PunctualException.noAnswer("about:blank",
                "no answer of " + address + reason(e)));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new UnavailableException(PunctualException.noAnswer("about:blank", "interrupted"));
        }
    }

    private void learnSoon(String token) {
        long now = System.nanoTime();
        if (!options.learnTopology() || now - learnedAt < TOPOLOGY_EVERY.toNanos() || !learning.compareAndSet(false, true)) {
            return;
        }
        learnedAt = now;
        List<String> list = addresses;
        Call call = Call.get("/v1/topology", token);
        http.sendAsync(request(call, list.get(Math.floorMod(current, list.size()))).build(),
                HttpResponse.BodyHandlers.ofByteArray())
            .whenComplete((response, failure) -> {
                try {
                    if (failure == null && response.statusCode() == 200) {
                        learn(Json.read(response.body(), Topology.class));
                    }
                } finally {
                    learning.set(false);
                }
            });
    }

    /** Remembers the brokers of a topology behind the addresses that the caller gave. */
    void learn(Topology topology) {
        if (!options.learnTopology() || topology.brokers() == null) {
            return;
        }
        Set<String> all = new LinkedHashSet<>(given);
        for (Broker broker : topology.brokers()) {
            if (all.size() < ADDRESSES_MAX) {
                all.add(scheme() + "://" + broker.address());
            }
        }
        List<String> before = addresses;
        String using = before.get(Math.floorMod(current, before.size()));
        List<String> after = new ArrayList<>(all);
        addresses = after;
        current = Math.max(0, after.indexOf(using));
    }

    /** An answer whose status says success. */
    record Reply(int status, byte[] body) {
        <T> T as(Class<T> type) {
            try {
                return Json.read(body, type);
            } catch (JsonException | IllegalArgumentException e) {
                throw new ServerException(PunctualException.unreadable(status, "unreadable answer: " + e.getMessage()));
            }
        }
    }
}
