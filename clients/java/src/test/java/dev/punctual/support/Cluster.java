package dev.punctual.support;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** Three brokers on a Redis server of their own. */
public final class Cluster implements AutoCloseable {
    private final Path directory = Broker.temporary();
    private final int port = freePort();
    private final Process redis;
    private final List<Broker> brokers = new ArrayList<>();

    public Cluster() {
        try {
            redis = new ProcessBuilder("redis-server", "--port", Integer.toString(port), "--bind", "127.0.0.1", "--save",
                "", "--appendonly", "yes", "--maxmemory-policy", "noeviction", "--dir", directory.toString())
                .redirectErrorStream(true).redirectOutput(directory.resolve("log").toFile()).start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        Await.until("Redis answers", this::pong);
        for (int i = 0; i < 3; i++) {
            brokers.add(Broker.ofCluster(port));
        }
    }

    private static int freePort() {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** A port that listens is not enough: Redis may still read its files. */
    private boolean pong() {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.setSoTimeout(1_000);
            socket.getOutputStream().write("PING\r\n".getBytes(StandardCharsets.US_ASCII));
            byte[] answer = socket.getInputStream().readNBytes("+PONG".length());
            return new String(answer, StandardCharsets.US_ASCII).equals("+PONG");
        } catch (IOException e) {
            return false;
        }
    }

    public List<Broker> brokers() {
        return brokers;
    }

    /** The addresses of all brokers, that of the leader first. */
    public String[] urls(String leader) {
        String first = at(leader).url();
        return Stream.concat(Stream.of(first), brokers.stream().map(Broker::url).filter(url -> !url.equals(first)))
            .toArray(String[]::new);
    }

    /** The broker with this address, HOST:PORT. */
    public Broker at(String address) {
        return brokers.stream().filter(broker -> broker.address().equals(address)).findFirst().orElseThrow();
    }

    @Override
    public void close() throws InterruptedException {
        brokers.forEach(Broker::close);
        redis.destroyForcibly().waitFor(10, TimeUnit.SECONDS);
        Broker.delete(directory);
    }
}
