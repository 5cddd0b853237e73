package dev.punctual;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.punctual.support.Await;
import dev.punctual.support.Broker;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

final class ConnectionsTest {
    private static final Duration HOUR = Duration.ofHours(1);
    /** A database that cannot be reached: its port never listens. */
    private static final String CONFIG = """
        [connections.shop-db]
        kind = "postgres"
        url = "postgres://punctual@127.0.0.1:1/shop"
        namespaces = ["shop"]

        [connections.shop-db.statements]
        order-paid = "update orders set state = 'paid' where id = :order"

        [[sources]]
        kind = "outbox"
        connection = "shop-db"
        table = "punctual_outbox"
        namespace = "shop"
        """;

    private static Broker broker;
    private static Punctual p;

    @BeforeAll
    static void start(@TempDir Path directory) throws IOException {
        Path config = Files.writeString(directory.resolve("punctual.toml"), CONFIG);
        broker = Broker.serve("--config", config.toString());
        p = Punctual.connect(broker.url()).namespace("shop");
    }

    @AfterAll
    static void stop() {
        broker.close();
    }

    @Test
    void connectionsAndSourcesAreListed() throws Exception {
        Await.until("the connection is away", () -> p.connections().connections().get(0).problem() != null);
        Connection connection = p.connections().connections().get(0);
        assertEquals("shop-db", connection.name());
        assertEquals("postgres", connection.kind());
        assertEquals(ConnectionState.AWAY, connection.state());
        assertTrue(connection.since().isAfter(Instant.now().minus(HOUR)));
        assertEquals(List.of("shop"), connection.namespaces());
        assertEquals(List.of("order-paid"), connection.statements());
        Source source = p.connections().sources().get(0);
        assertEquals("shop", source.namespace());
        assertNull(source.readAt());
        assertEquals(0, source.applied());
    }

    @Test
    void aConnectionIsTested() {
        ConnectionTest test = p.testConnection("shop-db");
        assertEquals("shop-db", test.name());
        assertFalse(test.works());
        assertNotNull(test.problem());
        assertEquals("urn:punctual:connection-not-found",
            assertThrows(NotFoundException.class, () -> p.testConnection("other-db")).problem().type());
    }

    @Test
    void eachKindOfTargetIsSentUnderItsName() {
        Target method = Target.toMethod("http://127.0.0.1:9", "/shop.Orders/Cancel");
        assertEquals(method, p.schedule("order-50").in(HOUR).to(method).send().target());
        Map<String, String> headers = Map.of("x-a", "b");
        Map<String, Target> targets = Map.of(
            "kafka", Target.toKafka(KafkaTarget.topic("events", "orders").withKey("a").withHeaders(headers)),
            "amqp", Target.toAmqp(AmqpTarget.exchange("rabbit", "orders", "paid").withHeaders(headers)),
            "nats", Target.toNats(new NatsTarget("bus", "orders.paid")),
            "mqtt", Target.toMqtt(MqttTarget.topic("hall", "lamps/7").withQos(2).withRetain(true)),
            "redis_stream", Target.toRedisStream(RedisStreamTarget.stream("cache", "orders").withMaxlen(1_000)));
        // The configuration has none of these connections.
        targets.forEach((field, target) -> assertEquals("target." + field + ".connection",
            assertThrows(InvalidException.class, () -> p.schedule("order-51").in(HOUR).to(target).send()).problem()
                .field()));
    }

    @Test
    void aStatementIsATarget() {
        p.schedule("order-42").in(HOUR).toStatement("shop-db", "order-paid", Map.of("order", 42L, "lines", List.of("a", true)))
            .send();
        assertEquals(Target.toStatement("shop-db", "order-paid", Map.of("order", 42L, "lines", List.of("a", true))),
            p.get("order-42").target());
        Task withoutParams = p.schedule("order-43").in(HOUR).toStatement("shop-db", "order-paid").payload(Map.of("order", 43))
            .send();
        assertEquals(new SqlTarget("shop-db", "order-paid", null), withoutParams.target().sql());
        assertEquals("target.sql.statement", assertThrows(InvalidException.class,
            () -> p.schedule("order-44").in(HOUR).toStatement("shop-db", "order-late").send()).problem().field());
    }
}
