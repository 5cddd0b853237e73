package dev.punctual;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.punctual.support.Await;
import dev.punctual.support.Broker;
import dev.punctual.support.Cluster;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

final class ClusterTest {
    private static final int TASKS = 3_000;

    @Test
    void everyFireIsHandledAlthoughTheLeaderIsKilled() throws Exception {
        try (Cluster cluster = new Cluster()) {
            // One address is given; the client learns the others.
            Punctual p = Punctual.connect(cluster.brokers().get(0).url()).namespace("shop");
            Await.until("three brokers have partitions", () -> {
                var brokers = p.topology().brokers();
                return brokers.size() == 3 && brokers.stream().noneMatch(one -> one.partitions().isEmpty());
            });
            // The fire ids that each key was handled with: one, whatever is delivered again.
            Map<String, Set<String>> handled = new ConcurrentHashMap<>();
            try (Worker worker = worker(p, "one", handled); Worker other = worker(p, "two", handled)) {
                Await.until("the workers are known to every broker", () -> brokersOf(p, "one").size() == 3);
                schedule(p);
                Await.until("some are handled", () -> handled.size() > TASKS / 20);
                Broker leader = cluster.at(p.topology().leader());
                leader.kill();
                assertTrue(handled.size() < TASKS, "the leader was killed after the last fire");
                Await.until("all are handled", () -> handled.size() == TASKS);
                Await.until("all have ended", () -> p.stats().scheduled() + p.stats().firing() == 0);
                Await.until("another broker leads", () -> !leader.address().equals(p.topology().leader()));
            }
            handled.forEach((key, fires) -> assertEquals(1, fires.size(), key));
            assertEquals(List.of(), p.dead().toList());
        }
    }

    private static Worker worker(Punctual p, String name, Map<String, Set<String>> handled) {
        return p.worker().name(name).concurrency(8).lease(Duration.ofSeconds(3))
            .on("q", Object.class, fire -> handled.computeIfAbsent(fire.key(), key -> ConcurrentHashMap.newKeySet())
                .add(fire.id()))
            .start();
    }

    private static Set<String> brokersOf(Punctual p, String worker) {
        return p.workers().stream().filter(one -> worker.equals(one.name())).map(WorkerInfo::broker)
            .collect(Collectors.toSet());
    }

    private static void schedule(Punctual p) {
        List<NewTask> tasks = new ArrayList<>();
        for (int i = 0; i < TASKS; i++) {
            tasks.add(NewTask.key("t" + i).in(Duration.ofMillis(2L * i)).toQueue("q")
                .retry(new RetryPolicy(20, Backoff.fixed(Duration.ofMillis(500)), null)));
        }
        for (ScheduleResult result : p.scheduleMany(tasks)) {
            assertInstanceOf(ScheduleResult.Scheduled.class, result);
        }
    }
}
