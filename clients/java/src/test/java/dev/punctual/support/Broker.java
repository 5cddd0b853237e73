package dev.punctual.support;

import dev.punctual.Json;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** A process of the real binary ({@code PUNCTUAL_BIN}) on a free port, with a directory of its own. */
public final class Broker implements AutoCloseable {
    private static final int START_SECONDS_MAX = 30;
    /** How many lines of the log a failure shows. */
    private static final int LINES_MAX = 20;

    private final List<String> command;
    private final Path directory;
    private final Deque<String> lines = new ArrayDeque<>();
    private Process process;
    private String url;

    private Broker(List<String> command, Path directory) {
        this.command = command;
        this.directory = directory;
        start("127.0.0.1:0");
    }

    public static String binary() {
        String binary = System.getenv("PUNCTUAL_BIN");
        return binary == null || binary.isEmpty() ? "punctual" : binary;
    }

    /** {@code punctual dev}: the memory store and a virtual clock that starts at this time. */
    public static Broker dev(String clock, List<String> more) {
        return new Broker(with(List.of("dev", "--clock", clock), more), temporary());
    }

    /** {@code punctual serve} on an embedded store. */
    public static Broker serve(List<String> more) {
        Path directory = temporary();
        return new Broker(with(List.of("serve", "--log-format", "json", "--allow-private-targets", "--data-dir",
            directory.resolve("data").toString()), more), directory);
    }

    public static Broker serve(String... more) {
        return serve(List.of(more));
    }

    /** One broker of a cluster on Redis. */
    static Broker ofCluster(int redisPort) {
        return new Broker(List.of("serve", "--log-format", "json", "--redis", "redis://127.0.0.1:" + redisPort,
            "--lease", "2s"), temporary());
    }

    private static List<String> with(List<String> command, List<String> more) {
        List<String> all = new ArrayList<>(command);
        all.addAll(more);
        return all;
    }

    static Path temporary() {
        try {
            return Files.createTempDirectory("punctual-java-");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void start(String listen) {
        List<String> all = new ArrayList<>(List.of(binary()));
        all.addAll(command);
        all.addAll(2, List.of("--listen", listen));
        try {
            process = new ProcessBuilder(all).redirectErrorStream(true).directory(directory.toFile()).start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        CompletableFuture<String> ready = new CompletableFuture<>();
        Process started = process;
        Thread reader = new Thread(() -> read(started, ready), "broker-log");
        reader.setDaemon(true);
        reader.start();
        try {
            url = ready.get(START_SECONDS_MAX, TimeUnit.SECONDS);
        } catch (Exception e) {
            kill();
            throw new AssertionError("the broker did not start: " + String.join(" ", all) + "\n" + log(), e);
        }
    }

    /** Reads the output to its end. Otherwise the broker would block when the pipe is full. */
    private void read(Process from, CompletableFuture<String> ready) {
        try (BufferedReader out = from.inputReader(StandardCharsets.UTF_8)) {
            for (String line = out.readLine(); line != null; line = out.readLine()) {
                synchronized (lines) {
                    lines.addLast(line);
                    if (lines.size() > LINES_MAX) {
                        lines.removeFirst();
                    }
                }
                String address = ready.isDone() ? null : address(line);
                if (address != null) {
                    ready.complete(address);
                }
            }
        } catch (IOException e) {
            // The process was killed.
        }
        ready.completeExceptionally(new IOException("the process ended"));
    }

    /** {@code dev} prints its address as JSON, {@code serve} logs that it is ready. */
    private static String address(String line) {
        if (!line.startsWith("{")) {
            return null;
        }
        Map<?, ?> json = Json.read(line, Map.class);
        if (json.get("url") instanceof String url) {
            return url.replaceAll("/+$", "");
        }
        return json.get("fields") instanceof Map<?, ?> fields && "ready".equals(fields.get("message"))
            ? "http://" + fields.get("listen") : null;
    }

    public String url() {
        return url;
    }

    /** HOST:PORT. */
    public String address() {
        return url.substring(url.indexOf("//") + 2);
    }

    public String log() {
        synchronized (lines) {
            return String.join("\n", lines);
        }
    }

    /** Kills the broker with SIGKILL. */
    public void kill() {
        process.destroyForcibly();
        try {
            if (!process.waitFor(10, TimeUnit.SECONDS)) {
                throw new AssertionError("a killed broker still runs");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Kills the broker and starts it again on the same directory and port. */
    public void restart() {
        String listen = address();
        kill();
        start(listen);
    }

    @Override
    public void close() {
        kill();
        delete(directory);
    }

    static void delete(Path directory) {
        try (Stream<Path> paths = Files.walk(directory)) {
            for (Path path : paths.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(path);
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
