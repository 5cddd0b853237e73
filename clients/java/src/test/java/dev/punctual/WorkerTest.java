package dev.punctual;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.punctual.support.Await;
import dev.punctual.support.Broker;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

final class WorkerTest {
    private static Broker broker;

    record Order(int order) {}

    @BeforeAll
    static void start() {
        broker = Broker.serve();
    }

    @AfterAll
    static void stop() {
        broker.close();
    }

    private static Punctual client(String namespace) {
        return Punctual.connect(broker.url()).namespace(namespace);
    }

    @Test
    void aWorkerAcksRetriesRefusesAndKeepsResults() {
        Punctual p = client("work");
        AtomicInteger tries = new AtomicInteger();
        try (Worker worker = p.worker().name("tester").concurrency(4)
            .onReturning("q", Order.class, fire -> Map.of("order", fire.payload().order()))
            .onKey("q", "again-", Order.class, fire -> {
                if (tries.incrementAndGet() == 1) {
                    throw Retry.after(Duration.ofMillis(10));
                }
            })
            .onKey("q", "never-", Order.class, fire -> {
                throw Refuse.because("no such order");
            }).start()) {
            p.schedule("ok-1").in(Duration.ZERO).toQueue("q").payload(new Order(1)).send();
            p.schedule("again-1").in(Duration.ZERO).toQueue("q").payload(new Order(2)).send();
            p.schedule("never-1").in(Duration.ZERO).toQueue("q").payload(new Order(3)).send();
            Await.until("three ends", () -> p.fires().toList().size() == 3);
            assertTrue(p.workers().stream().anyMatch(w -> "tester".equals(w.name())));
        }
        assertEquals("{\"order\":1}", p.fires("ok-1").get(0).result().toString());
        assertEquals(2, p.fires("again-1").get(0).attempts().size());
        assertEquals("no such order", p.dead().toList().get(0).attempts().get(0).reason());
    }

    @Test
    void aLeaseIsExtendedWhileTheHandlerRuns() {
        Punctual p = client("slow");
        AtomicInteger calls = new AtomicInteger();
        try (Worker worker = p.worker().lease(Duration.ofSeconds(1)).on("q", Object.class, fire -> {
            calls.incrementAndGet();
            Thread.sleep(2_500);
        }).start()) {
            p.schedule("a").in(Duration.ZERO).toQueue("q").send();
            Await.until("done", () -> !p.fires("a").isEmpty());
            assertEquals(1, calls.get());
        }
        assertEquals(1, p.fires("a").get(0).attempts().size());
    }

    @Test
    void theLongestPrefixOfAKeyChoosesTheHandler() {
        Punctual p = client("router");
        Map<String, String> handled = new ConcurrentHashMap<>();
        try (Worker worker = p.worker()
            .onKey("q", "unit:", Object.class, fire -> handled.put(fire.key(), "unit"))
            .onKey("q", "unit:lamp:", Object.class, fire -> handled.put(fire.key(), "lamp"))
            .onKey("q", "door:", Object.class, fire -> handled.put(fire.key(), "door"))
            .start()) {
            for (String key : List.of("unit:1", "unit:lamp:1", "door:1")) {
                p.schedule(key).in(Duration.ZERO).toQueue("q").send();
            }
            p.schedule("else:1").in(Duration.ZERO).toQueue("q").retry(RetryPolicy.attempts(1)).send();
            Await.until("four ends", () -> p.fires().toList().size() == 4);
        }
        assertEquals(Map.of("unit:1", "unit", "unit:lamp:1", "lamp", "door:1", "door"), handled);
        assertTrue(p.dead().toList().get(0).attempts().get(0).reason().contains("no handler"));
    }

    @Test
    void noMoreHandlersRunAtOnceThanTheConcurrency() {
        Punctual p = client("concurrency");
        AtomicInteger now = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        AtomicInteger handled = new AtomicInteger();
        List<NewTask> tasks = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            tasks.add(NewTask.key("t" + i).in(Duration.ZERO).toQueue("q"));
        }
        p.scheduleMany(tasks);
        try (Worker worker = p.worker().concurrency(3).on("q", Object.class, fire -> {
            most.accumulateAndGet(now.incrementAndGet(), Math::max);
            Thread.sleep(5);
            now.decrementAndGet();
            handled.incrementAndGet();
        }).start()) {
            Await.until("all are handled", () -> handled.get() == 60);
        }
        assertTrue(most.get() <= 3, "at once: " + most.get());
    }

    @Test
    void closingWaitsForTheHandlerAndSettlesIt() throws Exception {
        Punctual p = client("graceful");
        CountDownLatch begun = new CountDownLatch(1);
        CountDownLatch may = new CountDownLatch(1);
        Worker worker = p.worker().on("q", Object.class, fire -> {
            begun.countDown();
            may.await();
        }).start();
        p.schedule("a").in(Duration.ZERO).toQueue("q").send();
        begun.await();
        Thread closing = new Thread(worker::close);
        closing.start();
        p.schedule("b").in(Duration.ZERO).toQueue("q").send();
        may.countDown();
        closing.join();
        assertTrue(worker.counts().acked() >= 1);
        Await.until("the end of a is recorded", () -> p.fires("a").size() == 1);
    }

    @Test
    void aFireThatIsDeliveredAgainIsNotHandledAgain() {
        Punctual p = client("dedup");
        List<String> ids = new ArrayList<>();
        Set<Integer> attempts = ConcurrentHashMap.newKeySet();
        CountDownLatch may = new CountDownLatch(1);
        // Without extension the broker takes the delivery back after a second and delivers it again.
        try (Worker worker = p.worker().lease(Duration.ofSeconds(1)).extendFor(Duration.ZERO)
            .on("q", Object.class, fire -> {
                synchronized (ids) {
                    ids.add(fire.id());
                }
                attempts.add(fire.attempt());
                may.await();
            }).start()) {
            p.schedule("a").in(Duration.ZERO).toQueue("q")
                .retry(new RetryPolicy(5, Backoff.fixed(Duration.ofMillis(10)), null)).send();
            Await.until("a second attempt", () -> p.get("a").attempt() > 1);
            may.countDown();
            Await.until("done", () -> p.fires("a").size() == 1);
        }
        assertEquals(1, ids.size());
        assertEquals(FireEnd.DONE, p.fires("a").get(0).end());
    }

    @Test
    void aWorkerWithoutAHandlerIsRefused() {
        assertThrows(IllegalStateException.class, () -> client("none").worker().start());
    }
}
