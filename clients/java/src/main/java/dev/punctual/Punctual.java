package dev.punctual;

import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Stream;

/**
 * A client of Punctual. It is immutable and can be used by many threads; one per program is enough.
 *
 * <pre>{@code
 * var p = Punctual.connect("http://localhost:7400").namespace("shop");
 * p.schedule("order-1").in(Duration.ofMinutes(15)).toQueue("unpaid").payload(new Order(1)).send();
 * }</pre>
 *
 * <p>Calls that fail throw a {@link PunctualException}. A call is repeated only if that is safe: after a 503 that says
 * that nothing was done, after a 429, and if it is idempotent also after a broken connection. With several brokers the
 * next one is tried at once; all brokers of the cluster are learned from any of them.
 */
public final class Punctual {
    /** Where a broker listens by default. */
    private static final String URL_DEFAULT = "http://127.0.0.1:7400";
    /** As many tasks as the broker takes in one batch. */
    private static final int BATCH_MAX = 10_000;
    /** Below the 64 MiB that the broker takes in one batch, so that the last task still fits. */
    private static final int BATCH_BYTES_MAX = 48 << 20;

    private final Transport transport;
    private final String namespace;
    private final String token;

    private Punctual(Transport transport, String namespace, String token) {
        this.transport = transport;
        this.namespace = namespace;
        this.token = token;
    }

    /** Connects to the brokers of {@code PUNCTUAL_URL} (separated by commas) with {@code PUNCTUAL_TOKEN}. */
    public static Punctual connect() {
        String urls = System.getenv("PUNCTUAL_URL");
        return connect((urls == null || urls.isBlank() ? URL_DEFAULT : urls).split(","));
    }

    /** Connects to brokers of one cluster; one address is enough. The token is {@code PUNCTUAL_TOKEN}, if it is set. */
    public static Punctual connect(String... urls) {
        return builder().urls(urls).connect();
    }

    public static Builder builder() {
        return new Builder();
    }

    /** Options of a client. */
    public static final class Builder {
        private List<String> urls = List.of(URL_DEFAULT);
        private String token = System.getenv("PUNCTUAL_TOKEN");
        private Duration connectTimeout = Duration.ofSeconds(3);
        private Duration timeout = Duration.ofSeconds(30);
        private int triesMax = 10;
        private Duration retryFor = Duration.ofSeconds(30);
        private boolean learnTopology = true;

        private Builder() {}

        /** Addresses of brokers, for example {@code http://10.0.0.1:7400}. */
        public Builder urls(String... urls) {
            if (urls.length == 0) {
                throw new IllegalArgumentException("at least one address of a broker is required");
            }
            this.urls = Arrays.stream(urls).map(url -> url.strip().replaceAll("/+$", "")).toList();
            return this;
        }

        public Builder token(String token) {
            this.token = token;
            return this;
        }

        public Builder connectTimeout(Duration timeout) {
            this.connectTimeout = timeout;
            return this;
        }

        /** How long to wait for one answer, in addition to the time that a long poll asks for. The default is 30 s. */
        public Builder timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /** How often a call is sent to each broker at most, the first time included. The default is 10. */
        public Builder triesMax(int tries) {
            this.triesMax = tries;
            return this;
        }

        /** For how long a call is repeated at most. The default is 30 s. */
        public Builder retryFor(Duration time) {
            this.retryFor = time;
            return this;
        }

        /** Whether brokers are used that the topology names. The default is true; false for brokers behind a proxy. */
        public Builder learnTopology(boolean yes) {
            this.learnTopology = yes;
            return this;
        }

        public Punctual connect() {
            if (triesMax < 1) {
                throw new IllegalArgumentException("triesMax must be at least 1");
            }
            Transport.Options options =
                new Transport.Options(urls, connectTimeout, timeout, triesMax, retryFor, learnTopology);
            return new Punctual(new Transport(options), null, token == null || token.isEmpty() ? null : token);
        }
    }

    /** The same client in a namespace. */
    public Punctual namespace(String namespace) {
        return new Punctual(transport, namespace, token);
    }

    /** The same client with another token; null for none. */
    public Punctual token(String token) {
        return new Punctual(transport, namespace, token);
    }

    /** The namespace of this client; null if none was chosen. */
    public String namespace() {
        return namespace;
    }

    /** The addresses of brokers that the client knows: those it was given, then those it has learned. */
    public List<String> addresses() {
        return List.copyOf(transport.addresses());
    }

    // Tasks

    /** Creates or replaces the task with this key. */
    public ScheduleCall schedule(String key) {
        return new ScheduleCall(this, key);
    }

    /** Creates a task without a key. */
    public ScheduleCall schedule() {
        return new ScheduleCall(this, null);
    }

    /**
     * Creates or replaces many tasks and returns one result each, in order; one that is wrong does not stop the others.
     * More than 10,000 are sent in several calls. If one of these fails, its exception is thrown, and the tasks of the
     * calls before it exist. A call can be repeated after a broken connection: tasks with a key replace themselves, as by
     * {@link #schedule(String)}; if there are tasks without one, the call has an idempotency key, which makes it slower.
     */
    public List<ScheduleResult> scheduleMany(Collection<NewTask> tasks) {
        List<ScheduleResult> results = new ArrayList<>(tasks.size());
        ByteBuilder lines = new ByteBuilder();
        int count = 0;
        boolean allHaveKeys = true;
        for (NewTask task : tasks) {
            Json.write(task, lines);
            lines.write('\n');
            allHaveKeys &= task.fields().get("key") != null;
            if (++count == BATCH_MAX || lines.size() >= BATCH_BYTES_MAX) {
                results.addAll(sendLines(lines, allHaveKeys));
                lines.truncate(0);
                count = 0;
                allHaveKeys = true;
            }
        }
        if (count > 0) {
            results.addAll(sendLines(lines, allHaveKeys));
        }
        return results;
    }

    private List<ScheduleResult> sendLines(ByteBuilder lines, boolean allHaveKeys) {
        Call call = call("POST", "/tasks").bytes(lines.toByteArray(), "application/x-ndjson").idempotent(true);
        if (!allHaveKeys) {
            call.header("idempotency-key", UUID.randomUUID().toString());
        }
        return ScheduleResults.read(send(call).body());
    }

    /** A task by its key or id. If its key is free again, the answer is about the last task that had it. */
    public Task get(String keyOrId) {
        return send(call("GET", task(keyOrId))).as(Task.class);
    }

    /** Waits up to {@code wait}, at most 30 s, until a caller has changed the task or it has ended; then returns it. */
    public Task get(String keyOrId, long afterVersion, Duration wait) {
        String query = "?after_version=" + afterVersion + "&wait=" + Times.format(wait);
        return send(call("GET", task(keyOrId) + query).waitFor(wait)).as(Task.class);
    }

    /** Cancels a task. After {@link Cancelled} it never fires. */
    public CancelResult cancel(String keyOrId) {
        try {
            return send(call("DELETE", task(keyOrId))).as(CancelAnswer.class).result();
        } catch (NotFoundException e) {
            return new NotFound(e.problem());
        }
    }

    /** Cancels many tasks by key, at most 10,000; one outcome each, in order. */
    public List<CancelOutcome> cancelMany(Collection<String> keys) {
        return cancelMany("keys", keys);
    }

    /** Cancels many tasks by id, at most 10,000; one outcome each, in order. */
    public List<CancelOutcome> cancelManyById(Collection<String> ids) {
        return cancelMany("ids", ids);
    }

    private List<CancelOutcome> cancelMany(String name, Collection<String> which) {
        Call call = call("POST", "/cancel").body(Map.of(name, which)).idempotent(true);
        return send(call).as(CancelAnswers.class).results().stream().map(CancelAnswer::outcome).toList();
    }

    private record CancelAnswers(List<CancelAnswer> results) {}

    /** Touches a watch, or moves a task that fires once. */
    public TouchCall touch(String keyOrId) {
        return new TouchCall(this, keyOrId);
    }

    /** Touches many tasks by key, at most 10,000. */
    public TouchManyCall touch(Collection<String> keys) {
        return new TouchManyCall(this, keys);
    }

    /** Collects touches and sends them together: for heartbeats. */
    public TouchBuffer.Builder touchBuffer() {
        return new TouchBuffer.Builder(this);
    }

    /** The touch rules of the namespace. */
    public List<TouchRule> rules() {
        return send(call("GET", "/rules")).as(TouchRules.class).rules();
    }

    private record TouchRules(List<TouchRule> rules) {}

    /** Creates or replaces the touch rule of a prefix: touches create missing keys that start with it as this watch. */
    public TouchRule putRule(String prefix, NewTask create) {
        return send(call("PUT", rulePath(prefix)).body(create)).as(TouchRule.class);
    }

    /** Deletes the touch rule of a prefix; the tasks that it created stay. */
    public void deleteRule(String prefix) {
        send(call("DELETE", rulePath(prefix)));
    }

    private static String rulePath(String prefix) {
        return "/rules/" + Call.encode(prefix);
    }

    /** Keeps a task from firing until it is resumed. */
    public Task pause(String keyOrId) {
        return send(call("POST", task(keyOrId) + "/pause").idempotent(true)).as(Task.class);
    }

    public Task resume(String keyOrId) {
        return send(call("POST", task(keyOrId) + "/resume").idempotent(true)).as(Task.class);
    }

    /**
     * Fires a task now, once, in addition to its schedule. It is not repeated after a broken connection, because it might
     * fire twice: {@link LostException}.
     */
    public Task fire(String keyOrId) {
        return send(call("POST", task(keyOrId) + "/fire")).as(Task.class);
    }

    /** What a task waits for, or how it ended. */
    public Explanation explain(String keyOrId) {
        return send(call("GET", task(keyOrId) + "/explain")).as(Explanation.class);
    }

    /** The tasks of the namespace. */
    public TaskList list() {
        return new TaskList(this);
    }

    /** The fires of one task that have ended, newest first. */
    public List<FireRecord> fires(String keyOrId) {
        return send(call("GET", task(keyOrId) + "/fires")).as(FireList.Fires.class).fires();
    }

    /** The latest fires of one task that have ended, newest first. */
    public List<FireRecord> fires(String keyOrId, int limit) {
        return send(call("GET", task(keyOrId) + "/fires?limit=" + limit)).as(FireList.Fires.class).fires();
    }

    /** The fires of all tasks that have ended, newest first. */
    public FireList fires() {
        return new FireList(this);
    }

    // Dead letters

    public DeadList dead() {
        return new DeadList(this);
    }

    /** Dead letters by reason and target, the largest group first. */
    public DeadGroups deadGroups() {
        return send(call("GET", "/dead/groups")).as(DeadGroups.class);
    }

    /** Schedules dead letters again, by fire id. */
    public Redriven redrive(Collection<String> fireIds) {
        return redrive(Map.of("ids", fireIds));
    }

    /** Schedules all dead letters of a group again. */
    public Redriven redrive(DeadGroupFilter group) {
        return redrive(Map.of("where", group));
    }

    public Redriven redriveAll() {
        return redrive(Map.of("all", true));
    }

    private Redriven redrive(Map<String, Object> selection) {
        return send(call("POST", "/dead/redrive").body(selection)).as(Redriven.class);
    }

    /** Deletes one dead letter. */
    public void deleteDead(String fireId) {
        send(call("DELETE", "/dead/" + Call.encode(fireId)));
    }

    public DeletedLetters deleteDead(Collection<String> fireIds) {
        return deleteDead(Map.of("ids", fireIds));
    }

    public DeletedLetters deleteDead(DeadGroupFilter group) {
        return deleteDead(Map.of("where", group));
    }

    public DeletedLetters deleteAllDead() {
        return deleteDead(Map.of("all", true));
    }

    private DeletedLetters deleteDead(Map<String, Object> selection) {
        return send(call("POST", "/dead/delete").body(selection)).as(DeletedLetters.class);
    }

    // What is there, and what is to come

    public Stats stats() {
        return send(call("GET", "/stats")).as(Stats.class);
    }

    /** The fires that are expected per step from now on. */
    public Forecast forecast(Duration length, Duration step) {
        return forecast(length, step, null);
    }

    /** The fires that are expected per step from {@code at} on. */
    public Forecast forecast(Duration length, Duration step, Instant at) {
        return forecast(length, step, at, null);
    }

    /** The same, also of each target. Tasks are read for it, at most 100,000. */
    public Forecast forecastByTarget(Duration length, Duration step, Instant at) {
        return forecast(length, step, at, "target");
    }

    private Forecast forecast(Duration length, Duration step, Instant at, String by) {
        Map<String, String> query = new LinkedHashMap<>();
        query.put("for", Times.format(length));
        query.put("step", Times.format(step));
        query.put("at", at == null ? null : Times.format(at));
        query.put("by", by);
        return send(call("GET", "/forecast" + PagedList.query(query))).as(Forecast.class);
    }

    /** What ended in each step (1, 5, 15 or 60 minutes) of the last hours. */
    public Series series(Duration length, Duration step) {
        Map<String, String> query = new LinkedHashMap<>();
        query.put("for", Times.format(length));
        query.put("step", Times.format(step));
        return send(call("GET", "/series" + PagedList.query(query))).as(Series.class);
    }

    /** The next fire times of a cron expression in a zone. */
    public Preview preview(String cron, ZoneId zone, int count) {
        return preview(cron, zone.getId(), count, null, null);
    }

    /**
     * The next fire times of a cron expression after {@code from}; what is null has its default. The time zone is checked
     * by the broker, whose database may be newer than that of the JDK.
     */
    public Preview preview(String cron, String timezone, Integer count, Instant from, Dst dst) {
        Map<String, String> query = new LinkedHashMap<>();
        query.put("cron", cron);
        query.put("timezone", timezone);
        query.put("count", count == null ? null : count.toString());
        query.put("from", from == null ? null : Times.format(from));
        query.put("dst_gap", dst == null || dst.gap() == null ? null : Json.enumText(dst.gap()));
        query.put("dst_overlap", dst == null || dst.overlap() == null ? null : Json.enumText(dst.overlap()));
        return send(root("GET", "/v1/preview" + PagedList.query(query))).as(Preview.class);
    }

    public List<QueueInfo> queues() {
        return send(call("GET", "/queues")).as(Queues.class).queues();
    }

    private record Queues(List<QueueInfo> queues) {}

    /** The targets that have due tasks, deliveries in flight, or attempts that failed in the last 15 minutes. */
    public Lanes lanes() {
        return send(call("GET", "/lanes")).as(Lanes.class);
    }

    public List<WorkerInfo> workers() {
        return send(call("GET", "/workers")).as(Workers.class).workers();
    }

    private record Workers(List<WorkerInfo> workers) {}

    /** All namespaces; needs an admin token, if the broker has tokens. */
    public NamespaceList namespaces() {
        return new NamespaceList(this);
    }

    /** The brokers of the cluster. */
    public Topology topology() {
        Topology topology = send(root("GET", "/v1/topology")).as(Topology.class);
        transport.learn(topology);
        return topology;
    }

    public WhoAmI whoami() {
        return send(root("GET", "/v1/whoami")).as(WhoAmI.class);
    }

    /** Counts and rates of the namespace, once a second. Close the stream after use; {@code iterator()} reads as it comes. */
    public Stream<LiveSecond> live() {
        return seconds(call("GET", "/live"));
    }

    /** Counts and rates of all namespaces, once a second. Close the stream after use. */
    public Stream<LiveSecond> liveAll() {
        return seconds(root("GET", "/v1/live"));
    }

    private Stream<LiveSecond> seconds(Call call) {
        Stream<String> lines = transport.lines(call);
        return lines.filter(line -> line.startsWith("data:"))
            .map(line -> Json.read(line.substring("data:".length()), LiveSecond.class));
    }

    // Operations

    /** Does something to all tasks that match a filter. */
    public Operation startOperation(OperationVerb verb, TaskFilter where) {
        return startOperation(verb, where, null);
    }

    /** Moves all tasks that match a filter: {@code later} belongs to {@code SHIFT} and {@code SPREAD}. */
    public Operation startOperation(OperationVerb verb, TaskFilter where, Duration later) {
        return send(operation(verb, where, later, false)).as(OneOperation.class).operation();
    }

    /** Counts what an operation would change, and changes nothing. */
    public DryRun dryRun(OperationVerb verb, TaskFilter where) {
        return dryRun(verb, where, null);
    }

    /** The same for an operation that moves tasks. */
    public DryRun dryRun(OperationVerb verb, TaskFilter where, Duration later) {
        return send(operation(verb, where, later, true).idempotent(true)).as(DryRun.class);
    }

    private Call operation(OperationVerb verb, TaskFilter where, Duration later, boolean dryRun) {
        Map<String, Object> body = new LinkedHashMap<>(Map.of("do", verb, "where", where, "dry_run", dryRun));
        if (later != null) {
            body.put("later", later);
        }
        return call("POST", "/operations").body(body);
    }

    private record OneOperation(Operation operation) {}

    /** The latest operations that the broker knows, newest first. */
    public List<Operation> operations() {
        return send(call("GET", "/operations")).as(Operations.class).operations();
    }

    private record Operations(List<Operation> operations) {}

    public Operation operation(String id) {
        return send(call("GET", "/operations/" + Call.encode(id))).as(OneOperation.class).operation();
    }

    /** Stops an operation after its present step. */
    public Operation stopOperation(String id) {
        return send(call("DELETE", "/operations/" + Call.encode(id))).as(OneOperation.class).operation();
    }

    /** What operators did, newest first. Brokers keep the latest in memory, and all in their logs. */
    public Actions actions(int limit) {
        Map<String, String> query = Map.of("limit", Integer.toString(limit));
        return send(call("GET", "/actions" + PagedList.query(query))).as(Actions.class);
    }

    // Alarms

    /** Creates or replaces an alarm. */
    public Alarm putAlarm(String name, AlarmRule rule) {
        return send(call("PUT", alarmPath(name)).body(rule)).as(Alarm.class);
    }

    public Alarm alarm(String name) {
        return send(call("GET", alarmPath(name))).as(Alarm.class);
    }

    public List<Alarm> alarms() {
        return send(call("GET", "/alarms")).as(Alarms.class).alarms();
    }

    private record Alarms(List<Alarm> alarms) {}

    public void deleteAlarm(String name) {
        send(call("DELETE", alarmPath(name)));
    }

    /** Sends a test notice. */
    public AlarmTest testAlarm(String name) {
        return send(call("POST", alarmPath(name) + "/test")).as(AlarmTest.class);
    }

    private static String alarmPath(String name) {
        return "/alarms/" + Call.encode(name);
    }

    // Connections

    /** The connections and sources of the broker that answers; needs an admin token, if the broker has tokens. */
    public Connections connections() {
        return send(root("GET", "/v1/connections")).as(Connections.class);
    }

    /** Opens a session of a connection and closes it; needs an admin token, if the broker has tokens. */
    public ConnectionTest testConnection(String name) {
        Call call = root("POST", "/v1/connections/" + Call.encode(name) + "/test").idempotent(true);
        return send(call).as(ConnectionTest.class);
    }

    // Queues

    /** A worker with handlers for queues. Most programs need nothing else of this section. */
    public Worker.Builder worker() {
        return new Worker.Builder(this);
    }

    /** Waits up to {@code wait} for up to {@code max} deliveries of a queue, and holds each for {@code lease}. */
    public List<Delivery> lease(String queue, int max, Duration wait, Duration lease) {
        return lease(queue, max, wait, lease, null);
    }

    /** The same under the name of a worker. {@code lease} may be null: the timeout of the task. */
    public List<Delivery> lease(String queue, int max, Duration wait, Duration lease, String worker) {
        return send(leaseCall(queue, max, wait, lease, worker)).as(Deliveries.class).deliveries();
    }

    Call leaseCall(String queue, int max, Duration wait, Duration lease, String worker) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("max", max);
        body.put("wait", wait);
        body.put("lease", lease);
        body.put("worker", worker);
        body.values().removeIf(value -> value == null);
        return call("POST", queue(queue, "/lease")).body(body).waitFor(wait);
    }

    record Deliveries(List<Delivery> deliveries) {}

    /** Acknowledges deliveries, at most 10,000; one result each, in order. */
    public List<AckedOne> ack(String queue, Collection<String> tokens) {
        return send(call("POST", queue(queue, "/ack")).body(Map.of("tokens", tokens)).idempotent(true)).as(Acked.class)
            .results();
    }

    /** Acknowledges deliveries with results. */
    public List<AckedOne> ackWithResults(String queue, Collection<AckEntry> acks) {
        return send(call("POST", queue(queue, "/ack")).body(Map.of("acks", acks)).idempotent(true)).as(Acked.class)
            .results();
    }

    private record Acked(List<AckedOne> results) {}

    /** A failed attempt. {@code retryIn} may be null: the backoff of the task. */
    public SettleResult fail(String queue, String token, String reason, Duration retryIn) {
        Map<String, Object> body = new LinkedHashMap<>(Map.of("token", token, "reason", reason));
        if (retryIn != null) {
            body.put("retry_in", retryIn);
        }
        return settle(queue, "/fail", body);
    }

    /** No further attempt: the fire is a dead letter. */
    public SettleResult refuse(String queue, String token, String reason) {
        return settle(queue, "/refuse", Map.of("token", token, "reason", reason));
    }

    /** Holds a delivery for {@code lease} from now. */
    public SettleResult extend(String queue, String token, Duration lease) {
        return settle(queue, "/extend", Map.of("token", token, "lease", lease));
    }

    private SettleResult settle(String queue, String verb, Map<String, Object> body) {
        return send(call("POST", queue(queue, verb)).body(body).idempotent(true)).as(Settled.class).result();
    }

    private record Settled(SettleResult result) {}

    // The broker

    /** Whether the broker answers. */
    public boolean alive() {
        return send(root("GET", "/livez")).status() == 200;
    }

    /** Whether the broker is ready, and why not. */
    public Ready ready() {
        return send(root("GET", "/readyz").allow(503)).as(Ready.class);
    }

    /** The metrics in the format of OpenMetrics. */
    public String metrics() {
        return new String(send(root("GET", "/metrics")).body(), java.nio.charset.StandardCharsets.UTF_8);
    }

    /** The description of the API of the broker. */
    public JsonValue openapi() {
        return send(root("GET", "/openapi.json")).as(JsonValue.class);
    }

    /** The virtual clock of {@code punctual dev}. */
    public VirtualClock clock() {
        return new VirtualClock(this);
    }

    // Sending

    /** A call in the namespace. */
    Call call(String method, String path) {
        if (namespace == null) {
            throw new IllegalStateException("no namespace: choose one with namespace(\"…\")");
        }
        return root(method, "/v1/" + Call.encode(namespace) + path);
    }

    /** A call outside of namespaces. */
    Call root(String method, String path) {
        return new Call(method, path, token);
    }

    Transport.Reply send(Call call) {
        return transport.send(call);
    }

    Transport transport() {
        return transport;
    }

    private static String task(String keyOrId) {
        return "/tasks/" + Call.encode(keyOrId);
    }

    static String queue(String queue, String verb) {
        return "/queues/" + Call.encode(queue) + verb;
    }
}
