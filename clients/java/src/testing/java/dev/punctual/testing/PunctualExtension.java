package dev.punctual.testing;

import dev.punctual.Delivery;
import dev.punctual.Json;
import dev.punctual.Punctual;
import dev.punctual.VirtualClock;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A real broker with a virtual clock for each test: {@code punctual dev}, from {@code PUNCTUAL_BIN} or the path.
 *
 * <pre>{@code
 * @RegisterExtension static PunctualExtension punctual = PunctualExtension.virtualClock();
 * }</pre>
 */
public final class PunctualExtension implements BeforeEachCallback, AfterEachCallback {
    private static final Duration LEASE = Duration.ofMinutes(15);
    private static final int LEASE_MAX = 1_000;

    private Instant start;
    private String namespace = "test";
    private Process process;
    private String url;

    private PunctualExtension() {}

    public static PunctualExtension virtualClock() {
        return new PunctualExtension();
    }

    /** Where the clock starts. */
    public PunctualExtension startingAt(Instant start) {
        this.start = start;
        return this;
    }

    /** The namespace of {@link #client}; the default is {@code test}. */
    public PunctualExtension namespace(String namespace) {
        this.namespace = namespace;
        return this;
    }

    @Override
    public void beforeEach(ExtensionContext context) throws IOException {
        String binary = System.getenv("PUNCTUAL_BIN");
        List<String> command = new ArrayList<>(List.of(binary == null || binary.isEmpty() ? "punctual" : binary, "dev"));
        if (start != null) {
            command.addAll(List.of("--clock", start.toString()));
        }
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        BufferedReader out =
            new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        String line = out.readLine();
        if (line == null) {
            throw new IOException("punctual dev ended at once; run `" + String.join(" ", command) + "` to see why");
        }
        url = (String) Json.read(line, Map.class).get("url");
    }

    @Override
    public void afterEach(ExtensionContext context) throws InterruptedException {
        process.destroy();
        if (!process.waitFor(5, TimeUnit.SECONDS)) {
            process.destroyForcibly().waitFor();
        }
    }

    /** The address of the broker. */
    public String url() {
        return url;
    }

    /** A client of the broker in the namespace of the extension. */
    public Punctual client() {
        return Punctual.connect(url).namespace(namespace);
    }

    /** Moves the clock and returns when everything that became due has been delivered. */
    public VirtualClock.Advanced advance(Duration by) {
        return client().clock().advance(by);
    }

    public VirtualClock.Advanced advanceTo(Instant to) {
        return client().clock().advanceTo(to);
    }

    /** Takes and acknowledges what waits in a queue, in the order of its time. */
    public List<Delivery> fired(String queue) {
        List<Delivery> fired = client().lease(queue, LEASE_MAX, Duration.ZERO, LEASE);
        if (!fired.isEmpty()) {
            client().ack(queue, fired.stream().map(Delivery::token).toList());
        }
        return fired;
    }
}
