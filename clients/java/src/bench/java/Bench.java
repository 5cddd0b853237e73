import dev.punctual.NewTask;
import dev.punctual.Punctual;
import dev.punctual.ScheduleResult;
import dev.punctual.Worker;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Measures scheduling in batches and a worker with an empty handler. Arguments: tasks to schedule, deliveries. */
public final class Bench {
    private static final int BATCH = 10_000;
    /** Batches that are sent at once: the client writes and reads JSON while the broker works on the other. */
    private static final int SENDERS = 2;
    private static final Duration LONG = Duration.ofHours(24);
    private static final Duration WAIT_MAX = Duration.ofMinutes(5);

    private Bench() {}

    public static void main(String[] args) throws Exception {
        int tasks = args.length > 0 ? Integer.parseInt(args[0]) : 400_000;
        int deliveries = args.length > 1 ? Integer.parseInt(args[1]) : 200_000;
        Punctual p = Punctual.connect().namespace("bench");
        schedule(p, "warm", BATCH * SENDERS, LONG, "later");
        System.out.printf("schedule in batches: %,.0f tasks/s%n", tasks / schedule(p, "s", tasks, LONG, "later"));
        work(p, "w", BATCH);
        System.out.printf("worker: %,.0f deliveries acked/s%n", deliveries / work(p, "d", deliveries));
    }

    /** The seconds that it takes to schedule this many tasks. */
    private static double schedule(Punctual p, String prefix, int count, Duration in, String queue) throws Exception {
        ExecutorService senders = Executors.newFixedThreadPool(SENDERS);
        long start = System.nanoTime();
        List<Future<Integer>> sent = new ArrayList<>();
        for (int first = 0; first < count; first += BATCH) {
            int from = first;
            int to = Math.min(count, first + BATCH);
            Callable<Integer> batch = () -> {
                List<NewTask> tasks = new ArrayList<>(BATCH);
                for (int i = from; i < to; i++) {
                    tasks.add(NewTask.key(prefix + i).in(in).toQueue(queue));
                }
                return (int) p.scheduleMany(tasks).stream().filter(r -> r instanceof ScheduleResult.Scheduled).count();
            };
            sent.add(senders.submit(batch));
        }
        int scheduled = 0;
        for (Future<Integer> one : sent) {
            scheduled += one.get();
        }
        senders.shutdown();
        if (scheduled != count) {
            throw new IllegalStateException(scheduled + " of " + count + " tasks were scheduled");
        }
        return (System.nanoTime() - start) / 1e9;
    }

    /** The seconds in which a worker acknowledges this many deliveries that wait when it starts. */
    private static double work(Punctual p, String prefix, int count) throws Exception {
        schedule(p, prefix, count, Duration.ZERO, prefix);
        long start = System.nanoTime();
        try (Worker worker = p.worker().concurrency(4_000).on(prefix, Object.class, fire -> {}).start()) {
            while (worker.counts().acked() < count) {
                if (System.nanoTime() - start > WAIT_MAX.toNanos()) {
                    throw new IllegalStateException("only " + worker.counts() + " of " + count);
                }
                Thread.sleep(1);
            }
            return (System.nanoTime() - start) / 1e9;
        }
    }
}
