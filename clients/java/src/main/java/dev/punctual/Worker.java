package dev.punctual;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;

/**
 * Receives deliveries of queues, runs a handler for each, and settles them. It polls every broker of the cluster, never
 * runs more handlers at once than its concurrency, extends leases while handlers run, and acknowledges in batches. A fire
 * that has been handled and is delivered again is acknowledged without a second call of its handler, as long as its id
 * is remembered.
 *
 * <p>{@link #close} takes no further deliveries, waits for the handlers and settles what they did.
 */
public final class Worker implements AutoCloseable {
    /** As many deliveries as a broker hands out in one call. */
    private static final int LEASE_MAX = 1_000;
    /** As many acks as a broker takes in one call. */
    private static final int ACKS_MAX = 10_000;
    /** Acks that wait while a broker does not answer. Polling stops above, so memory is bounded. */
    private static final int UNSETTLED_MAX = 50_000;
    /** How long a poll waits. It bounds how long {@link #close} takes while nothing is due. */
    private static final Duration POLL_WAIT = Duration.ofSeconds(2);
    /** The same if there are more polls than permits and they take turns. */
    private static final Duration POLL_TURN = Duration.ofMillis(200);
    private static final Duration TOPOLOGY_EVERY = Duration.ofSeconds(2);
    private static final Duration PAUSE_MAX = Duration.ofSeconds(2);
    /** Longer reasons are cut: the broker keeps 512 bytes. */
    private static final int REASON_MAX = 500;
    /** The address of a poll that uses whichever broker the client reaches. */
    private static final String ANY = "";

    private final Builder options;
    private final Punctual client;
    private final Semaphore permits;
    private final ExecutorService handlers;
    private final Map<String, Thread> polls = new ConcurrentHashMap<>();
    private final Map<String, Boolean> reachable = new ConcurrentHashMap<>();
    private final Map<String, Running> running = new ConcurrentHashMap<>();
    private final Map<String, Done> done;
    private final LinkedBlockingQueue<Settlement> settlements = new LinkedBlockingQueue<>();
    private final AtomicInteger unsettled = new AtomicInteger();
    private final List<Thread> threads = new ArrayList<>();
    private final LongAdder acked = new LongAdder();
    private final LongAdder failed = new LongAdder();
    private final LongAdder refused = new LongAdder();
    private final LongAdder stale = new LongAdder();
    private final LongAdder lost = new LongAdder();
    private volatile Set<String> wanted = Set.of(ANY);
    private volatile boolean stopping;
    private volatile boolean polled;
    private volatile boolean settled;

    /** What a worker has settled. {@code unsettled} could not be sent to any broker and is delivered again. */
    public record Counts(long acked, long failed, long refused, long stale, long unsettled) {}

    private record Route(Class<?> type, Handler.Returning<Object> handler) {}

    /** A fire whose handler runs; further deliveries of it wait for the same outcome. */
    private static final class Running {
        private final List<String> tokens = new ArrayList<>();
        private final String queue;
        private final Duration lease;
        private final long startedAt = System.nanoTime();
        private long extendAt;

        Running(String queue, Delivery delivery) {
            this.queue = queue;
            this.lease = delivery.lease();
            tokens.add(delivery.token());
            extendAt = System.nanoTime() + lease.toNanos() / 3;
        }
    }

    /** The result of a fire that was handled; null if it had none. */
    private record Done(JsonValue result) {}

    private enum Verb {
        ACK, FAIL, REFUSE
    }

    private record Settlement(Verb verb, String queue, String token, JsonValue result, String reason, Duration after) {}

    /** Options of a worker. */
    public static final class Builder {
        private final Punctual client;
        private final Map<String, TreeMap<String, Route>> routes = new LinkedHashMap<>();
        private String name = "java-" + ProcessHandle.current().pid();
        private int concurrency = 64;
        private Duration lease = Duration.ofSeconds(30);
        private Duration extendFor = Duration.ofMinutes(15);
        private int remembered = 10_000;
        private ExecutorService executor;

        Builder(Punctual client) {
            this.client = client;
        }

        /** How the worker is listed in {@code GET /v1/{ns}/workers}. */
        public Builder name(String name) {
            this.name = name;
            return this;
        }

        /** How many handlers may run at once. The default is 64. */
        public Builder concurrency(int handlers) {
            if (handlers < 1) {
                throw new IllegalArgumentException("concurrency must be at least 1");
            }
            this.concurrency = handlers;
            return this;
        }

        /** After how long a delivery is handed to another worker if this one dies; 1 s to 15 min, default 30 s. */
        public Builder lease(Duration lease) {
            this.lease = lease;
            return this;
        }

        /** How long leases are extended while a handler runs. The default is 15 min. */
        public Builder extendFor(Duration time) {
            this.extendFor = time;
            return this;
        }

        /** How many handled fires are remembered to skip repeated deliveries; 0 for none. The default is 10,000. */
        public Builder dedup(int fires) {
            this.remembered = fires;
            return this;
        }

        /** Runs handlers on these threads, for example virtual ones. It is not shut down. */
        public Builder executor(ExecutorService executor) {
            this.executor = executor;
            return this;
        }

        /** Handles the deliveries of a queue. The payload is read as {@code type}. */
        public <T> Builder on(String queue, Class<T> type, Handler<T> handler) {
            return onKey(queue, "", type, handler);
        }

        /** Handles the deliveries of a queue and returns the result of each. */
        public <T> Builder onReturning(String queue, Class<T> type, Handler.Returning<T> handler) {
            return route(queue, "", type, handler);
        }

        /** Handles the deliveries of a queue whose key starts with {@code prefix}. The longest prefix wins. */
        public <T> Builder onKey(String queue, String prefix, Class<T> type, Handler<T> handler) {
            return route(queue, prefix, type, fire -> {
                handler.handle(fire);
                return null;
            });
        }

        /** The same with a result. */
        public <T> Builder onKeyReturning(String queue, String prefix, Class<T> type, Handler.Returning<T> handler) {
            return route(queue, prefix, type, handler);
        }

        private <T> Builder route(String queue, String prefix, Class<T> type, Handler.Returning<T> handler) {
            Route route = new Route(type, fire -> handler.handle(new Fire<>(type.cast(fire.payload()), fire.delivery())));
            routes.computeIfAbsent(queue, q -> new TreeMap<>()).put(prefix, route);
            return this;
        }

        /** Starts the worker. It runs until it is closed. */
        public Worker start() {
            if (routes.isEmpty()) {
                throw new IllegalStateException("a worker needs a handler: on(queue, type, handler)");
            }
            client.call("GET", "");
            Worker worker = new Worker(this);
            worker.begin();
            return worker;
        }
    }

    private Worker(Builder options) {
        this.options = options;
        this.client = options.client;
        this.permits = new Semaphore(options.concurrency, true);
        this.handlers = options.executor != null ? options.executor
            : Executors.newFixedThreadPool(options.concurrency, daemon("punctual-handler"));
        int max = options.remembered;
        this.done = new LinkedHashMap<>() {
            private static final long serialVersionUID = 1;

            @Override
            protected boolean removeEldestEntry(Map.Entry<String, Done> eldest) {
                return size() > max;
            }
        };
    }

    private static ThreadFactory daemon(String name) {
        AtomicInteger number = new AtomicInteger();
        return work -> {
            Thread thread = new Thread(work, name + "-" + number.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        };
    }

    private void begin() {
        // Polls start at once at whichever broker the client reaches; the topology is learned meanwhile.
        startPolls(Set.of(ANY));
        spawn("punctual-topology", this::followTopology);
        spawn("punctual-settle", this::settleAll);
        spawn("punctual-extend", this::extendAll);
    }

    private void spawn(String name, Runnable work) {
        Thread thread = daemon(name).newThread(work);
        threads.add(thread);
        thread.start();
    }

    /** Takes no further deliveries; returns at once. */
    public void stop() {
        stopping = true;
    }

    public Counts counts() {
        return new Counts(acked.sum(), failed.sum(), refused.sum(), stale.sum(), lost.sum());
    }

    /** Takes no further deliveries, waits for the handlers, and settles what they did. */
    @Override
    public void close() {
        stop();
        boolean interrupted = false;
        List<Thread> all;
        synchronized (polls) {
            all = new ArrayList<>(polls.values());
        }
        for (Thread poll : all) {
            interrupted |= join(poll);
        }
        permits.acquireUninterruptibly(options.concurrency);
        polled = true;
        for (Thread thread : threads) {
            interrupted |= join(thread);
        }
        if (options.executor == null) {
            handlers.shutdown();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static boolean join(Thread thread) {
        boolean interrupted = false;
        while (thread != Thread.currentThread()) {
            try {
                thread.join();
                return interrupted;
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        return interrupted;
    }

    // Polling

    private void startPolls(Set<String> addresses) {
        synchronized (polls) {
            polls.values().removeIf(thread -> !thread.isAlive());
            if (stopping) {
                return;
            }
            wanted = addresses;
            for (String address : addresses) {
                for (String queue : options.routes.keySet()) {
                    polls.computeIfAbsent(address + " " + queue, key -> {
                        Thread thread = daemon("punctual-poll").newThread(() -> poll(address, queue));
                        thread.start();
                        return thread;
                    });
                }
            }
        }
    }

    private void followTopology() {
        while (!stopping) {
            try {
                startPolls(brokers());
            } catch (PunctualException e) {
                // No broker answers: the polls go on with what they have.
            }
            for (int i = 0; i < 20 && !stopping; i++) {
                sleep(TOPOLOGY_EVERY.dividedBy(20));
            }
        }
    }

    /** One broker is polled through the client; several by their addresses, and through the client if none is reached. */
    private Set<String> brokers() {
        Set<String> addresses = new HashSet<>();
        if (client.transport().learnsTopology()) {
            for (Broker broker : client.topology().brokers()) {
                addresses.add(client.transport().scheme() + "://" + broker.address());
            }
        }
        if (addresses.size() < 2) {
            return Set.of(ANY);
        }
        if (addresses.stream().allMatch(address -> Boolean.FALSE.equals(reachable.get(address)))) {
            addresses.add(ANY);
        }
        return addresses;
    }

    private void poll(String address, String queue) {
        int failures = 0;
        while (!stopping && wanted.contains(address)) {
            int taken = 0;
            try {
                taken = takePermits();
                if (taken == 0) {
                    continue;
                }
                List<Delivery> deliveries = lease(address, queue, taken);
                failures = 0;
                reachable.put(address, true);
                taken -= deliveries.size();
                deliveries.forEach(delivery -> dispatch(queue, delivery));
            } catch (PunctualException e) {
                reachable.put(address, false);
                permits.release(taken);
                taken = 0;
                failures = Math.min(failures + 1, 10);
                sleep(Duration.ofMillis(Math.min(PAUSE_MAX.toMillis(), 25L << failures)));
            } finally {
                permits.release(taken);
            }
        }
    }

    private List<Delivery> lease(String address, String queue, int max) {
        boolean turns = polls.size() > options.concurrency;
        Call call = client.leaseCall(queue, max, turns ? POLL_TURN : POLL_WAIT, options.lease, options.name).onlyOnce()
            .at(address.equals(ANY) ? null : address);
        return client.send(call).as(Punctual.Deliveries.class).deliveries();
    }

    /** Takes the share of one poll: at least one permit, and no more than the others leave room for. */
    private int takePermits() {
        try {
            if (unsettled.get() > UNSETTLED_MAX || !permits.tryAcquire(50, TimeUnit.MILLISECONDS)) {
                return 0;
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            stopping = true;
            return 0;
        }
        int share = Math.max(1, Math.min(LEASE_MAX, options.concurrency / Math.max(1, polls.size())));
        int more = Math.min(share - 1, permits.availablePermits());
        return more > 0 && permits.tryAcquire(more) ? 1 + more : 1;
    }

    private static void sleep(Duration time) {
        try {
            Thread.sleep(time.toMillis());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    // Handling

    private void dispatch(String queue, Delivery delivery) {
        Done before = null;
        synchronized (done) {
            before = done.get(delivery.fireId());
            if (before == null) {
                Running first = running.get(delivery.fireId());
                if (first != null) {
                    first.tokens.add(delivery.token());
                    permits.release();
                    return;
                }
                running.put(delivery.fireId(), new Running(queue, delivery));
            }
        }
        if (before != null) {
            settle(new Settlement(Verb.ACK, queue, delivery.token(), before.result(), null, null));
            permits.release();
            return;
        }
        handlers.execute(() -> {
            try {
                handle(queue, delivery);
            } finally {
                permits.release();
            }
        });
    }

    private void handle(String queue, Delivery delivery) {
        Settlement outcome = outcome(queue, delivery);
        Running ended;
        synchronized (done) {
            ended = running.remove(delivery.fireId());
            if (outcome.verb() == Verb.ACK && options.remembered > 0) {
                done.put(delivery.fireId(), new Done(outcome.result()));
            }
        }
        for (String token : ended.tokens) {
            settle(new Settlement(outcome.verb(), queue, token, outcome.result(), outcome.reason(), outcome.after()));
        }
    }

    private Settlement outcome(String queue, Delivery delivery) {
        try {
            Route route = route(queue, delivery.key());
            if (route == null) {
                return new Settlement(Verb.FAIL, queue, null, null, "no handler for this key", null);
            }
            Object payload = delivery.payload(route.type());
            Object result = route.handler().handle(new Fire<>(payload, delivery));
            return new Settlement(Verb.ACK, queue, null, result == null ? null : JsonValue.of(result), null, null);
        } catch (Retry e) {
            return new Settlement(Verb.FAIL, queue, null, null, reason(e), e.after());
        } catch (Refuse e) {
            return new Settlement(Verb.REFUSE, queue, null, null, reason(e), null);
        } catch (Throwable e) {
            return new Settlement(Verb.FAIL, queue, null, null, reason(e), null);
        }
    }

    private Route route(String queue, String key) {
        Route found = null;
        int longest = -1;
        for (Map.Entry<String, Route> entry : options.routes.get(queue).entrySet()) {
            String prefix = entry.getKey();
            if (prefix.length() > longest && (key == null ? "" : key).startsWith(prefix)) {
                found = entry.getValue();
                longest = prefix.length();
            }
        }
        return found;
    }

    private static String reason(Throwable e) {
        String text = e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage();
        return text.length() > REASON_MAX ? text.substring(0, REASON_MAX) : text;
    }

    // Settling

    private void settle(Settlement settlement) {
        unsettled.incrementAndGet();
        settlements.add(settlement);
    }

    private void settleAll() {
        List<Settlement> batch = new ArrayList<>();
        while (true) {
            batch.clear();
            boolean last = polled;
            try {
                Settlement first = settlements.poll(20, TimeUnit.MILLISECONDS);
                if (first == null) {
                    if (last) {
                        settled = true;
                        return;
                    }
                    continue;
                }
                batch.add(first);
            } catch (InterruptedException e) {
                continue;
            }
            settlements.drainTo(batch, ACKS_MAX - 1);
            settleBatch(batch);
            unsettled.addAndGet(-batch.size());
        }
    }

    private void settleBatch(List<Settlement> batch) {
        Map<String, List<AckEntry>> acks = new HashMap<>();
        for (Settlement one : batch) {
            if (one.verb() == Verb.ACK) {
                acks.computeIfAbsent(one.queue(), q -> new ArrayList<>()).add(new AckEntry(one.token(), one.result()));
            } else {
                settleOne(one);
            }
        }
        acks.forEach(this::ackAll);
    }

    private void ackAll(String queue, List<AckEntry> entries) {
        try {
            for (AckedOne one : client.ackWithResults(queue, entries)) {
                if (one.result() == AckResult.REJECTED) {
                    String reason = one.problem() == null ? "result rejected" : one.problem().detail();
                    settleOne(new Settlement(Verb.FAIL, queue, one.token(), null, reason, null));
                } else {
                    (one.result() == AckResult.ACKED ? acked : stale).increment();
                }
            }
        } catch (PunctualException e) {
            lost.add(entries.size());
        }
    }

    private void settleOne(Settlement one) {
        try {
            SettleResult result = one.verb() == Verb.FAIL
                ? client.fail(one.queue(), one.token(), one.reason(), one.after())
                : client.refuse(one.queue(), one.token(), one.reason());
            (result == SettleResult.STALE ? stale : one.verb() == Verb.FAIL ? failed : refused).increment();
        } catch (PunctualException e) {
            lost.increment();
        }
    }

    // Extending

    private void extendAll() {
        while (!settled) {
            sleep(Duration.ofMillis(100));
            long now = System.nanoTime();
            for (Running one : running.values()) {
                boolean tooLong = now - one.startedAt > options.extendFor.toNanos();
                if (now - one.extendAt >= 0 && !tooLong) {
                    one.extendAt = now + one.lease.toNanos() / 3;
                    extend(one);
                }
            }
        }
    }

    private void extend(Running one) {
        String token;
        synchronized (done) {
            token = one.tokens.get(one.tokens.size() - 1);
        }
        try {
            client.extend(one.queue, token, one.lease);
        } catch (PunctualException e) {
            // The next round tries again; if the lease ends meanwhile, the fire is delivered again.
        }
    }
}
