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
