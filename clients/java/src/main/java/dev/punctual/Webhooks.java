package dev.punctual;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.function.Function;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Checks the signatures of webhooks as Standard Webhooks describes. The signature covers the bytes of the body as they
 * were sent: check it before a framework parses them.
 */
public final class Webhooks {
    /** How far the timestamp may be from now, against replays. */
    private static final Duration TOLERANCE = Duration.ofMinutes(5);
    /** The largest payload of a task is 256 KiB; more is not read. */
    private static final int BODY_MAX = 1 << 20;

    private final List<byte[]> secrets;
    private final Clock clock;

    private Webhooks(List<byte[]> secrets, Clock clock) {
        this.secrets = secrets;
        this.clock = clock;
    }

    /** Accepts signatures of any of these secrets ({@code whsec_…}); two during a rotation. */
    public static Webhooks secrets(String... secrets) {
        if (secrets.length == 0) {
            throw new IllegalArgumentException("at least one secret is required");
        }
        List<byte[]> keys = new ArrayList<>();
        for (String secret : secrets) {
            keys.add(Base64.getDecoder().decode(secret.startsWith("whsec_") ? secret.substring(6) : secret));
        }
        return new Webhooks(keys, Clock.systemUTC());
    }

    /** Compares timestamps with this clock. */
    public Webhooks clock(Clock clock) {
        return new Webhooks(secrets, clock);
    }

    /** Checks a webhook. {@code header} returns the value of a header by its name in lower case, or null. */
    public Webhook verify(Function<String, String> header, byte[] body) throws WebhookException {
        String id = required(header, "webhook-id");
        String timestamp = required(header, "webhook-timestamp");
        String signatures = required(header, "webhook-signature");
        Instant sent = sentAt(timestamp);
        if (!signedByAny(id + "." + timestamp + ".", body, signatures)) {
            throw new WebhookException("no signature of webhook-signature matches");
        }
        String occasion = header.apply("punctual-occasion");
        return new Webhook(id, sent, header.apply("punctual-namespace"), header.apply("punctual-key"),
            occasion == null ? null : Json.read("\"" + occasion + "\"", Occasion.class),
            (int) number(header, "punctual-attempt"), number(header, "punctual-version"), time(header, "punctual-fire-at"),
            number(header, "punctual-lag-ms"), header.apply("punctual-callback-of"), body);
    }

    private static String required(Function<String, String> header, String name) throws WebhookException {
        String value = header.apply(name);
        if (value == null || value.isEmpty()) {
            throw new WebhookException("the header " + name + " is missing");
        }
        return value;
    }

    private Instant sentAt(String timestamp) throws WebhookException {
        try {
            Instant sent = Instant.ofEpochSecond(Long.parseLong(timestamp));
            if (Duration.between(sent, clock.instant()).abs().compareTo(TOLERANCE) > 0) {
                throw new WebhookException("webhook-timestamp is more than " + TOLERANCE.toMinutes() + " minutes from now");
            }
            return sent;
        } catch (NumberFormatException | java.time.DateTimeException | ArithmeticException e) {
            throw new WebhookException("webhook-timestamp is not a time in seconds");
        }
    }

    private boolean signedByAny(String head, byte[] body, String signatures) {
        boolean valid = false;
        for (byte[] secret : secrets) {
            byte[] expected = sign(secret, head, body);
            for (String signature : signatures.split(" ")) {
                byte[] given = signature.startsWith("v1,") ? decode(signature.substring(3)) : new byte[0];
                valid |= MessageDigest.isEqual(expected, given);
            }
        }
        return valid;
    }

    private static byte[] decode(String base64) {
        try {
            return Base64.getDecoder().decode(base64);
        } catch (IllegalArgumentException e) {
            return new byte[0];
        }
    }

    private static byte[] sign(byte[] secret, String head, byte[] body) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret, "HmacSHA256"));
            mac.update(head.getBytes(StandardCharsets.UTF_8));
            return mac.doFinal(body);
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("every JDK has HmacSHA256", e);
        }
    }

    private static long number(Function<String, String> header, String name) {
        try {
            String value = header.apply(name);
            return value == null ? 0 : Long.parseLong(value);
        } catch (NumberFormatException e) {
            return 0;
        }
    }

    private static Instant time(Function<String, String> header, String name) {
        try {
            String value = header.apply(name);
            return value == null ? null : Times.parseInstant(value);
        } catch (IllegalArgumentException e) {
            return null;
        }
    }

    /** What to do with a webhook. */
    @FunctionalInterface
    public interface Receiver {
        /** {@link Retry} answers 503, {@link Refuse} 410, any other exception 500; otherwise 204. */
        void receive(Webhook webhook) throws Exception;
    }

    /** A handler for the server of the JDK. It keeps the bytes of the body and checks the signature first. */
    public HttpHandler handler(Receiver receiver) {
        return exchange -> {
            try (exchange) {
                answer(exchange, receiver);
            }
        };
    }

    private void answer(HttpExchange exchange, Receiver receiver) throws IOException {
        byte[] body = exchange.getRequestBody().readNBytes(BODY_MAX + 1);
        if (body.length > BODY_MAX) {
            exchange.sendResponseHeaders(413, -1);
            return;
        }
        int status = 204;
        try {
            receiver.receive(verify(name -> exchange.getRequestHeaders().getFirst(name), body));
        } catch (WebhookException e) {
            status = 401;
        } catch (Retry e) {
            status = 503;
            if (e.after() != null) {
                exchange.getResponseHeaders().set("Retry-After", String.format(Locale.ROOT, "%d", e.after().toSeconds()));
            }
        } catch (Refuse e) {
            status = 410;
        } catch (Exception e) {
            status = 500;
        }
        exchange.sendResponseHeaders(status, -1);
    }
}
