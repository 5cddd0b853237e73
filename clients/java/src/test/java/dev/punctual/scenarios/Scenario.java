package dev.punctual.scenarios;

import static java.util.stream.Collectors.joining;

import dev.punctual.AckEntry;
import dev.punctual.AlreadyFired;
import dev.punctual.CancelOutcome;
import dev.punctual.CancelResult;
import dev.punctual.Cancelled;
import dev.punctual.DeadGroupFilter;
import dev.punctual.FireEnd;
import dev.punctual.FireList;
import dev.punctual.Firing;
import dev.punctual.Json;
import dev.punctual.JsonValue;
import dev.punctual.NotFound;
import dev.punctual.PagedList;
import dev.punctual.Problem;
import dev.punctual.Punctual;
import dev.punctual.PunctualException;
import dev.punctual.Refuse;
import dev.punctual.Retry;
import dev.punctual.ScheduleCall;
import dev.punctual.ScheduleResult;
import dev.punctual.State;
import dev.punctual.TaskList;
import dev.punctual.TouchCall;
import dev.punctual.TouchManyCall;
import dev.punctual.VirtualClock;
import dev.punctual.WebhookException;
import dev.punctual.Webhooks;
import dev.punctual.Worker;
import dev.punctual.support.Await;
import dev.punctual.support.Broker;
import dev.punctual.support.Cluster;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;

/** Runs one file of clients/scenarios through the public methods of the client. What it does not know fails. */
final class Scenario implements AutoCloseable {
    private static final Set<String> FILE_KEYS = Set.of("name", "broker", "clock", "args", "token", "steps");
    private static final Set<String> STEP_KEYS = Set.of("gives", "fails", "bind", "token");
    private static final String CLOCK_DEFAULT = "2027-01-04T08:00:00Z";

    private final Map<?, ?> file;
    /** One of these. */
    private final Broker broker;
    private final Cluster cluster;
    private final String[] urls;
    private final boolean virtual;
    private final Map<String, Object> names = new LinkedHashMap<>();
    private final List<Receiver> receivers = new ArrayList<>();
    private Punctual client;

    /** {@code realTime} runs it with {@code punctual serve}: moving the clock is waiting. */
    Scenario(Map<?, ?> file, boolean realTime) {
        if (!FILE_KEYS.containsAll(file.keySet())) {
            throw new AssertionError("unknown keys of the file: " + file.keySet());
        }
        this.file = file;
        List<String> more = new Arguments(file).has("args") ? new Arguments(file).texts("args") : List.of();
        String kind = realTime ? "serve" : file.get("broker") == null ? "dev" : (String) file.get("broker");
        virtual = kind.equals("dev");
        cluster = kind.equals("cluster") ? new Cluster() : null;
        broker = switch (kind) {
            case "dev" -> Broker.dev(file.get("clock") == null ? CLOCK_DEFAULT : (String) file.get("clock"), more);
            case "serve" -> Broker.serve(more);
            case "cluster" -> null;
            default -> throw new AssertionError("unknown broker " + kind);
        };
        urls = cluster == null ? new String[] {broker.url()} : cluster.urls(awaitLeader(cluster));
    }

    /** Waits until each broker owns partitions. */
    private static String awaitLeader(Cluster cluster) {
        Punctual p = Punctual.connect(cluster.brokers().get(0).url());
        Await.until("three brokers have partitions", () -> {
            var brokers = p.topology().brokers();
            return brokers.size() == 3 && brokers.stream().noneMatch(one -> one.partitions().isEmpty());
        });
        return p.topology().leader();
    }

    void run() throws Exception {
        int number = 0;
        for (Object step : (List<?>) file.get("steps")) {
            number++;
            try {
                step((Map<?, ?>) step);
            } catch (AssertionError | RuntimeException e) {
                throw new AssertionError("step " + number + ": " + Matching.shown(step) + "\n" + e + "\n" + log(), e);
            }
        }
    }

    private String log() {
        return broker != null ? broker.log() : cluster.brokers().stream().map(Broker::log).collect(joining("\n"));
    }

    private void step(Map<?, ?> step) throws Exception {
        List<?> verbs = step.keySet().stream().filter(key -> !STEP_KEYS.contains(key)).toList();
        if (verbs.size() != 1) {
            throw new AssertionError("not one verb: " + verbs);
        }
        String verb = (String) verbs.get(0);
        Arguments arguments = new Arguments(Matching.expand(step.get(verb), names));
        Object token = step.containsKey("token") ? step.get("token") : file.get("token");
        client = Punctual.builder().urls(urls).token((String) Matching.expand(token, names)).connect()
            .namespace(arguments.text("namespace", "shop"));
        Object answer;
        Problem problem = null;
        try {
            answer = call(verb, arguments);
        } catch (PunctualException e) {
            problem = e.problem();
            answer = problem;
        }
        if (answer instanceof NotFound none) {
            problem = none.problem();
            answer = problem;
        }
        arguments.end(verb);
        Object json = Json.read(Json.write(answer), Object.class);
        if (step.containsKey("fails")) {
            if (problem == null) {
                throw new AssertionError("expected a failure, got " + Matching.shown(json));
            }
            Matching.match(Matching.expand(step.get("fails"), names), json, "problem");
        } else if (problem != null) {
            throw new AssertionError("failed: " + Matching.shown(json));
        }
        if (step.containsKey("gives")) {
            Matching.match(Matching.expand(step.get("gives"), names), json, "answer");
        }
        if (step.get("bind") instanceof Map<?, ?> bind) {
            bind.forEach((name, path) -> names.put((String) name, Matching.pick(json, (String) path)));
        }
    }

    private Object call(String verb, Arguments a) throws Exception {
        return switch (verb) {
            case "schedule" -> schedule(a);
            case "schedule_many" -> Map.of("results", client
                .scheduleMany(a.list("tasks").stream().map(TaskReader::task).toList()).stream().map(Scenario::json).toList());
            case "get" -> client.get(a.text("task"));
            case "cancel" -> json(client.cancel(a.text("task")));
            case "pause" -> client.pause(a.text("task"));
            case "resume" -> client.resume(a.text("task"));
            case "fire" -> client.fire(a.text("task"));
            case "explain" -> client.explain(a.text("task"));
            case "touch" -> touch(a);
            case "touch_many" -> touchMany(a);
            case "cancel_many" -> Map.of("results", (a.has("ids") ? client.cancelManyById(a.texts("ids"))
                : client.cancelMany(a.texts("keys"))).stream().map(Scenario::json).toList());
            case "list" -> list(a);
            case "fires" -> fires(a);
            case "dead" -> Map.of("dead", items(client.dead(), a));
            // Without ids or all there is only the group, which needs a reason or a target.
            case "redrive" -> a.take("all") != null ? client.redriveAll()
                : a.has("ids") ? client.redrive(a.texts("ids")) : client.redrive(new DeadGroupFilter(null, null));
            case "delete_dead" -> {
                client.deleteDead(a.text("fire_id"));
                yield Map.of("result", "deleted");
            }
            case "rules" -> Map.of("rules", client.rules());
            case "put_rule" -> client.putRule(a.text("prefix"), TaskReader.task(a.take("create")));
            case "delete_rule" -> {
                client.deleteRule(a.text("prefix"));
                yield Map.of("result", "deleted");
            }
            default -> read(verb, a);
        };
    }

    private Object read(String verb, Arguments a) throws Exception {
        return switch (verb) {
            case "stats" -> client.stats();
            case "queues" -> Map.of("queues", client.queues());
            case "lanes" -> client.lanes();
            case "workers" -> Map.of("workers", client.workers());
            case "namespaces" -> Map.of("namespaces", client.namespaces().toList());
            case "topology" -> client.topology();
            case "whoami" -> client.whoami();
            case "forecast" -> client.forecast(a.duration("for"), a.duration("step"));
            case "preview" -> client.preview(a.text("cron"), a.text("timezone"),
                a.number("count"), a.instant("from"), null);
            default -> settle(verb, a);
        };
    }

    private Object settle(String verb, Arguments a) throws Exception {
        return switch (verb) {
            case "lease" -> {
                Integer max = a.number("max");
                Duration wait = a.duration("wait");
                yield Map.of("deliveries", client.lease(a.text("queue"), max == null ? 1 : max,
                    wait == null ? Duration.ZERO : wait, a.duration("lease"), a.text("worker")));
            }
            case "ack" -> Map.of("results", a.has("acks")
                ? client.ackWithResults(a.text("queue"), a.list("acks").stream().map(Scenario::ack).toList())
                : client.ack(a.text("queue"), a.texts("tokens")));
            case "fail" -> Map.of("result",
                client.fail(a.text("queue"), a.text("token"), a.text("reason"), a.duration("retry_in")));
            case "refuse" -> Map.of("result", client.refuse(a.text("queue"), a.text("token"), a.text("reason")));
            case "extend" -> Map.of("result", client.extend(a.text("queue"), a.text("token"), a.duration("lease")));
            case "work" -> work(a);
            default -> around(verb, a);
        };
    }

    private Object around(String verb, Arguments a) throws IOException {
        return switch (verb) {
            case "verify" -> Map.of("valid", verify(a));
            case "receiver" -> {
                receivers.add(new Receiver(a.list("answers")));
                yield Map.of("url", receivers.get(receivers.size() - 1).url());
            }
            case "received" -> Map.of("requests", receivers.stream().flatMap(one -> one.requests().stream()).toList());
            case "advance" -> advance(a);
            case "clock" -> client.clock().read();
            case "restart" -> {
                broker.restart();
                yield Map.of();
            }
            case "kill_leader" -> {
                cluster.at(client.topology().leader()).kill();
                yield Map.of();
            }
            default -> throw new AssertionError("unknown verb " + verb);
        };
    }

    private Object schedule(Arguments a) {
        ScheduleCall call = a.has("key") ? client.schedule(a.text("key")) : client.schedule();
        if (a.has("if_none_match")) {
            if (!"*".equals(a.text("if_none_match"))) {
                throw new AssertionError("if_none_match can only be *");
            }
            call.createOnly();
        }
        if (a.has("if_match")) {
            call.ifVersion(Long.parseLong(String.valueOf(a.take("if_match"))));
        }
        if (a.has("idempotency_key")) {
            call.idempotencyKey(a.text("idempotency_key"));
        }
        return TaskReader.fill(call, a.take("task")).send();
    }

    private Object touch(Arguments a) {
        TouchCall call = client.touch(a.text("task"));
        if (a.has("within")) {
            call.within(a.duration("within"));
        }
        if (a.has("in")) {
            call.in(a.duration("in"));
        }
        if (a.has("at")) {
            call.at(a.instant("at"));
        }
        return call.send();
    }

    private Object touchMany(Arguments a) {
        TouchManyCall call = client.touch(a.texts("keys"));
        if (a.has("create")) {
            call.orCreate(TaskReader.task(a.take("create")));
        }
        return call.send();
    }

    private Object list(Arguments a) {
        TaskList list = client.list();
        if (a.has("state")) {
            list.state(Arguments.as(a.take("state"), State.class));
        }
        if (a.has("key_prefix")) {
            list.keyPrefix(a.text("key_prefix"));
        }
        if (a.has("label")) {
            String[] label = a.text("label").split("[:=]", 2);
            list.label(label[0], label[1]);
        }
        if (a.has("from")) {
            list.from(a.instant("from"));
        }
        if (a.has("to")) {
            list.to(a.instant("to"));
        }
        return Map.of("tasks", items(list, a));
    }

    private Object fires(Arguments a) {
        if (a.has("task")) {
            String task = a.text("task");
            return Map.of("fires", a.has("limit") ? client.fires(task, a.number("limit")) : client.fires(task));
        }
        FireList list = client.fires();
        if (a.has("end")) {
            list.end(Arguments.as(a.take("end"), FireEnd.class));
        }
        if (a.has("key_prefix")) {
            list.keyPrefix(a.text("key_prefix"));
        }
        if (a.has("label")) {
            String[] label = a.text("label").split("[:=]", 2);
            list.label(label[0], label[1]);
        }
        return Map.of("fires", items(list, a));
    }

    private static <T> List<T> items(PagedList<T, ?> list, Arguments a) {
        if (a.has("limit")) {
            list.limit(a.number("limit"));
        }
        Integer pages = a.number("pages");
        if (pages != null && pages != 1) {
            throw new AssertionError("pages can only be 1");
        }
        return pages == null ? list.toList() : list.page().items();
    }

    private static AckEntry ack(Object json) {
        Arguments a = new Arguments(json);
        boolean result = a.has("result");
        AckEntry entry = new AckEntry(a.text("token"), result ? JsonValue.of(a.take("result")) : null);
        a.end("ack");
        return entry;
    }

    private static Object json(ScheduleResult result) {
        return result instanceof ScheduleResult.Scheduled scheduled ? scheduled.task()
            : ((ScheduleResult.Rejected) result).problem();
    }

    private static Object json(CancelResult result) {
        if (result instanceof Cancelled) {
            return Map.of("result", "cancelled");
        }
        if (result instanceof Firing firing) {
            return Map.of("result", "firing", "attempt", firing.attempt());
        }
        return result instanceof AlreadyFired fired ? Map.of("result", "already_fired", "fired_at", fired.at()) : result;
    }

    private static Object json(CancelOutcome outcome) {
        Map<String, Object> all = new LinkedHashMap<>();
        if (outcome.result() instanceof NotFound) {
            all.put("result", "not_found");
        } else if (json(outcome.result()) instanceof Map<?, ?> result) {
            result.forEach((name, value) -> all.put((String) name, value));
        }
        all.put("key", outcome.key());
        all.put("id", outcome.id());
        all.put("problem", outcome.problem());
        all.values().removeIf(value -> value == null);
        return all;
    }

    private Object work(Arguments a) throws InterruptedException {
        List<?> outcomes = a.list("handler");
        int count = a.number("count");
        List<Object> handled = new CopyOnWriteArrayList<>();
        Worker[] started = new Worker[1];
        Object starting = new Object();
        try {
            synchronized (starting) {
                started[0] = client.worker().concurrency(1).onReturning(a.text("queue"), Object.class, fire -> {
                    Object outcome = outcomes.get(Math.min(handled.size(), outcomes.size() - 1));
                    handled.add(fire.delivery());
                    if (handled.size() == count) {
                        synchronized (starting) {
                            started[0].stop();
                        }
                    }
                    return outcome(new Arguments(outcome));
                }).start();
            }
            Await.until(count + " deliveries", () -> handled.size() >= count);
        } finally {
            started[0].close();
        }
        return Map.of("handled", handled);
    }

    private static Object outcome(Arguments a) {
        String what = a.text("do");
        switch (what) {
            case "ok":
                return a.take("result");
            case "retry":
                Duration after = a.duration("after");
                Retry retry = after == null ? Retry.because("retry") : Retry.after(after);
                String reason = a.text("reason");
                throw reason == null ? retry : retry.reason(reason);
            case "refuse":
                throw Refuse.because(a.text("reason"));
            case "error":
                throw new IllegalStateException(a.text("reason"));
            default:
                throw new AssertionError("unknown outcome " + what);
        }
    }

    private static boolean verify(Arguments a) {
        Object secret = a.take("secret");
        String[] secrets = secret instanceof List<?> list ? list.toArray(String[]::new) : new String[] {(String) secret};
        Map<String, String> headers = new LinkedHashMap<>();
        ((Map<?, ?>) a.take("headers"))
            .forEach((name, value) -> headers.put(((String) name).toLowerCase(Locale.ROOT), String.valueOf(value)));
        Instant now = Instant.ofEpochSecond(Long.parseLong(String.valueOf(a.take("now"))));
        byte[] body = a.text("body").getBytes(StandardCharsets.UTF_8);
        try {
            Webhooks.secrets(secrets).clock(Clock.fixed(now, ZoneOffset.UTC)).verify(headers::get, body);
            return true;
        } catch (WebhookException e) {
            return false;
        }
    }

    private Object advance(Arguments a) {
        Duration wait = a.duration("wait");
        Duration by = a.duration("by");
        if (!virtual) {
            sleep(by);
            return Map.of();
        }
        VirtualClock clock = client.clock();
        return by != null ? clock.advance(by, wait) : clock.advanceTo(a.instant("to"), wait);
    }

    /** Settlements are durable a moment after they are answered, so the shortest wait is 300 ms. */
    private static void sleep(Duration by) {
        try {
            Thread.sleep(Math.max(300, by.toMillis()));
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    @Override
    public void close() throws InterruptedException {
        receivers.forEach(Receiver::close);
        if (broker != null) {
            broker.close();
        }
        if (cluster != null) {
            cluster.close();
        }
    }
}
