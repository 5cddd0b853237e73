package dev.punctual;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import dev.punctual.support.Broker;
import java.io.IOException;
import java.lang.reflect.RecordComponent;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/**
 * Compares the client with the OpenAPI document of the broker: every call, parameter and field of a body can be sent, and
 * every field and name of an answer can be read. The calls go to a server that records them.
 */
final class OpenApiTest {
    private static final Duration HOUR = Duration.ofHours(1);
    private static final Instant NOON = Instant.parse("2027-01-04T12:00:00Z");

    /** Schemas whose class has another name. */
    private static final Map<String, String> CLASSES = Map.ofEntries(
        Map.entry("Acked", "Punctual$Acked"), Map.entry("Alarms", "Punctual$Alarms"),
        Map.entry("CancelManyAnswer", "Punctual$CancelAnswers"), Map.entry("DeadLetters", "DeadList$Dead"),
        Map.entry("Deliveries", "Punctual$Deliveries"), Map.entry("EndedTask", "Task"),
        Map.entry("FirePage", "FireList$Fires"), Map.entry("Fires", "FireList$Fires"),
        Map.entry("LagAnswer", "LagSummary"), Map.entry("ListedKind", "Kind"), Map.entry("Method", "HttpMethod"),
        Map.entry("Namespaces", "NamespaceList$Namespaces"), Map.entry("OneOperation", "Punctual$OneOperation"),
        Map.entry("OperatedState", "State"), Map.entry("Operations", "Punctual$Operations"),
        Map.entry("Queues", "Punctual$Queues"), Map.entry("Settled", "Punctual$Settled"), Map.entry("TaskFields", "Task"),
        Map.entry("TaskOrEnded", "Task"), Map.entry("Workers", "Punctual$Workers"),
        Map.entry("CancelOutcome", "CancelAnswer"), Map.entry("CancelResult", "CancelAnswer"),
        Map.entry("Fire", "FireRecord"), Map.entry("Tasks", "TaskList$Tasks"), Map.entry("Rules", "Punctual$TouchRules"), Map.entry("Rule", "TouchRule"),
        Map.entry("TouchRules", "Punctual$TouchRules"));

    /** Schemas without a class, and why. */
    private static final Map<String, String> WITHOUT_CLASS = Map.of(
        "Deleted", "the methods that delete return nothing: there is one result",
        "DeletedResult", "the methods that delete return nothing: there is one result",
        "ProblemType", "a text in Problem, so that types of newer brokers can be read",
        "SeriesStep", "a Duration",
        "Results", "ScheduleResults reads it without objects",
        "TaskOrProblem", "ScheduleResult, whose parts are compared",
        "TaskOrResults", "one method each",
        "TaskOrScheduled", "one method each",
        "TaskOrTouched", "one method each");

    private record Request(String method, String path, Set<String> query, Set<String> headers, Set<String> fields) {}

    private static Map<?, ?> document;
    private static final List<Request> REQUESTS = new ArrayList<>();

    @BeforeAll
    static void recordAllCalls() throws IOException {
        try (Broker broker = Broker.serve()) {
            document = Punctual.connect(broker.url()).openapi().as(Map.class);
        }
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", OpenApiTest::recordOne);
        server.start();
        Punctual p = Punctual.builder().urls("http://127.0.0.1:" + server.getAddress().getPort()).learnTopology(false)
            .token(null).connect().namespace("shop");
        for (Runnable call : calls(p)) {
            try {
                call.run();
            } catch (InvalidException e) {
                // The recorder refuses every call.
            }
        }
        server.stop(0);
    }

    @AfterAll
    static void forget() {
        REQUESTS.clear();
    }

    private static void recordOne(HttpExchange exchange) throws IOException {
        try (exchange) {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            Set<String> fields = new TreeSet<>();
            for (String line : body.split("\n")) {
                if (!line.isEmpty()) {
                    Map<?, ?> json = Json.read(line, Map.class);
                    json.keySet().forEach(name -> fields.add((String) name));
                }
            }
            Set<String> headers = new TreeSet<>();
            exchange.getRequestHeaders().keySet().forEach(name -> headers.add(name.toLowerCase(Locale.ROOT)));
            Set<String> query = new TreeSet<>();
            String text = exchange.getRequestURI().getRawQuery();
            if (text != null) {
                Arrays.stream(text.split("&")).forEach(pair -> query.add(pair.substring(0, pair.indexOf('='))));
            }
            REQUESTS.add(new Request(exchange.getRequestMethod().toLowerCase(Locale.ROOT),
                exchange.getRequestURI().getRawPath(), query, headers, fields));
            byte[] problem = "{\"type\":\"urn:punctual:invalid-request\",\"status\":400}".getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(400, problem.length);
            exchange.getResponseBody().write(problem);
        }
    }

    private static List<Runnable> calls(Punctual p) {
        DeadGroupFilter group = new DeadGroupFilter("timeout", "queue:q");
        List<Runnable> calls = new ArrayList<>();
        calls.addAll(List.of(
            () -> everything(p.schedule("a")).createOnly().send(),
            () -> everything(p.schedule("a")).ifVersion(1).sendMinimal(),
            () -> everything(p.schedule()).idempotencyKey("once").sendMinimal(),
            () -> p.scheduleMany(List.of(everything(NewTask.key("a")))),
            () -> p.get("a", 1, HOUR), () -> p.cancel("a"), () -> p.cancelMany(List.of("a")),
            () -> p.cancelManyById(List.of("a")), () -> p.touch("a").in(HOUR).at(NOON).within(HOUR).sendMinimal(),
            () -> p.touch(List.of("a")).orCreate(Watch.within(HOUR)).in(HOUR).at(NOON).within(HOUR).send(),
            () -> p.pause("a"), () -> p.resume("a"), () -> p.fire("a"), () -> p.explain("a")));
        calls.addAll(List.of(
            () -> p.list().state(State.FIRING).kind(Kind.CRON).keyPrefix("a").label("b", "c").from(NOON).to(NOON).limit(1)
                .cursor("c").page(),
            () -> p.fires("a", 1),
            () -> p.fires().end(FireEnd.DONE).keyPrefix("a").label("b", "c").from(NOON).to(NOON).limit(1).cursor("c").page(),
            () -> p.dead().reason("timeout").target("queue:q").limit(1).cursor("c").page(), p::deadGroups,
            () -> p.redrive(List.of("a")), p::redriveAll, () -> p.redrive(group), () -> p.deleteDead("a"),
            () -> p.deleteDead(List.of("a")), p::deleteAllDead, () -> p.deleteDead(group)));
        calls.addAll(List.of(p::stats, () -> p.forecastByTarget(HOUR, HOUR, NOON), () -> p.series(HOUR, HOUR),
            () -> p.preview("@daily", "UTC", 1, NOON, new Dst(Gap.values()[0], Twice.values()[0])), p::queues, p::lanes, p::workers,
            () -> p.namespaces().limit(1).cursor("c").page(), p::topology, p::whoami, () -> p.live().close(),
            () -> p.liveAll().close(), () -> p.startOperation(OperationVerb.SHIFT, TaskFilter.all(), Duration.ofMinutes(1)),
            p::operations, () -> p.actions(1),
            () -> p.operation("a"), () -> p.stopOperation("a"),
            () -> p.putAlarm("a", new AlarmRule(AlarmCondition.deadLetters(0), AlarmReceiver.mail(List.of("a@b.c")), HOUR)),
            () -> p.alarm("a"), p::alarms, () -> p.deleteAlarm("a"), () -> p.testAlarm("a"), p::connections,
            () -> p.testConnection("a")));
        calls.addAll(List.of(() -> p.lease("q", 1, HOUR, HOUR, "w"), () -> p.ack("q", List.of("t")),
            () -> p.ackWithResults("q", List.of(new AckEntry("t", JsonValue.of(1)))), () -> p.fail("q", "t", "r", HOUR),
            () -> p.refuse("q", "t", "r"), () -> p.extend("q", "t", HOUR), p::alive, p::ready, p::metrics, p::openapi,
            p::rules, () -> p.putRule("unit:", everything(NewTask.withoutKey())), () -> p.deleteRule("unit:"),
            () -> p.clock().read(), () -> p.clock().advance(HOUR, HOUR), () -> p.clock().advanceTo(NOON),
            () -> p.clock().run(2), () -> p.clock().freeze()));
        return calls;
    }

    private static <T extends TaskFields<T>> T everything(T task) {
        Target queue = Target.toQueue("q");
        return task.in(HOUR).at(NOON).cron("@daily").every(HOUR).within(HOUR).zone(ZoneId.of("UTC")).startsAt(NOON)
            .endsAt(NOON).count(1).misfire(Misfire.SKIP).overlap(Overlap.SKIP)
            .dst(new Dst(Gap.values()[0], Twice.values()[0])).jitter(HOUR).onReturn(true).postponeMax(HOUR).to(queue)
            .payload(1).payload(new byte[1], "text/plain").guarantee(Guarantee.AT_MOST_ONCE)
            .retry(RetryPolicy.attempts(2)).timeout(HOUR).expiresAfter(HOUR).label("a", "b").paused(true).onDone(queue)
            .onDead(queue);
    }

    @Test
    void everyCallParameterAndFieldOfABodyIsSent() {
        List<String> missing = new ArrayList<>();
        operations().forEach((template, methods) -> methods.forEach((method, operation) -> {
            String name = method.toUpperCase(Locale.ROOT) + " " + template;
            List<Request> requests = REQUESTS.stream()
                .filter(request -> request.method().equals(method) && template.equals(templateOf(request))).toList();
            if (requests.isEmpty()) {
                missing.add(name);
                return;
            }
            for (Object parameter : list(operation.get("parameters"))) {
                Map<?, ?> one = (Map<?, ?>) parameter;
                String of = ((String) one.get("name")).toLowerCase(Locale.ROOT);
                boolean sent = one.get("in").equals("path") || requests.stream()
                    .anyMatch(r -> (one.get("in").equals("query") ? r.query() : r.headers()).contains(of));
                if (!sent) {
                    missing.add(name + ": " + one.get("in") + " " + of);
                }
            }
            Set<String> sent = new TreeSet<>();
            requests.forEach(request -> sent.addAll(request.fields()));
            Set<String> wanted = new TreeSet<>();
            bodies(operation).forEach(schema -> wanted.addAll(properties(schema)));
            // The body of a PUT has the fields of a task except the key: what it is about is in the path.
            if (method.equals("put")) {
                wanted.remove("key");
            }
            wanted.removeAll(sent);
            wanted.forEach(field -> missing.add(name + ": field " + field));
        }));
        assertEquals(List.of(), missing);
    }

    @Test
    void noCallIsSentThatTheDocumentDoesNotKnow() {
        Set<String> unknown = new TreeSet<>();
        for (Request request : REQUESTS) {
            String template = templateOf(request);
            if (template == null || operations().get(template).get(request.method()) == null) {
                unknown.add(request.method() + " " + request.path());
            }
        }
        // The clock of `punctual dev` is not part of the document.
        unknown.removeIf(call -> call.contains("/v1/clock"));
        // Brokers without touch rules answer 404.
        unknown.removeIf(call -> call.contains("/rules"));
        assertEquals(Set.of(), unknown);
    }

    @Test
    void everyFieldAndNameOfAnAnswerIsRead() {
        Map<?, ?> schemas = (Map<?, ?>) ((Map<?, ?>) document.get("components")).get("schemas");
        Set<Object> sent = new TreeSet<>();
        operations().forEach((path, methods) -> methods.forEach((method, operation) -> bodies(operation)
            .forEach(schema -> sent.add(schema.containsKey("$ref") ? nameOf(schema) : ""))));
        Map<String, Object> missing = new TreeMap<>();
        int compared = 0;
        for (Map.Entry<?, ?> entry : schemas.entrySet()) {
            String name = (String) entry.getKey();
            Set<String> wanted = new TreeSet<>(properties((Map<?, ?>) entry.getValue()));
            list(((Map<?, ?>) entry.getValue()).get("enum")).forEach(value -> wanted.add((String) value));
            if (wanted.isEmpty() || WITHOUT_CLASS.containsKey(name) || sent.contains(name) && recordOf(name) == null) {
                continue;
            }
            Class<?> type = recordOf(name);
            wanted.removeAll(type == null ? Set.of() : namesOf(type));
            if (type == null || !wanted.isEmpty()) {
                missing.put(name, type == null ? "no class" : wanted);
            }
            compared++;
        }
        assertEquals(Map.of(), missing);
        assertTrue(compared > 60, "only " + compared + " schemas compared");
    }

    private static Class<?> recordOf(String schema) {
        try {
            Class<?> type = Class.forName("dev.punctual." + CLASSES.getOrDefault(schema, schema));
            return type.isRecord() || type.isEnum() ? type : null;
        } catch (ClassNotFoundException e) {
            return null;
        }
    }

    private static Set<String> namesOf(Class<?> type) {
        Set<String> names = new TreeSet<>();
        if (type.isEnum()) {
            Arrays.stream(type.getEnumConstants()).forEach(one -> names.add(Json.enumText((Enum<?>) one)));
            return names;
        }
        for (RecordComponent component : type.getRecordComponents()) {
            JsonName name = component.getAnnotation(JsonName.class);
            names.add(name == null ? Json.snake(component.getName()) : name.value());
        }
        return names;
    }

    private static Map<String, Map<String, Map<?, ?>>> operations() {
        Map<String, Map<String, Map<?, ?>>> all = new TreeMap<>();
        ((Map<?, ?>) document.get("paths")).forEach((path, methods) -> {
            Map<String, Map<?, ?>> one = all.computeIfAbsent((String) path, p -> new TreeMap<>());
            ((Map<?, ?>) methods).forEach((method, operation) -> one.put((String) method, (Map<?, ?>) operation));
        });
        return all;
    }

    /** The path of the document that a request is about; the one with the fewest placeholders, if there are several. */
    private static String templateOf(Request request) {
        String found = null;
        for (String template : operations().keySet()) {
            String pattern = Pattern.quote(template).replaceAll("\\{[^}]*}", "\\\\E[^/]+\\\\Q");
            boolean better = found == null || placeholders(template) < placeholders(found);
            if (request.path().matches(pattern) && better) {
                found = template;
            }
        }
        return found;
    }

    private static long placeholders(String template) {
        return template.chars().filter(c -> c == '{').count();
    }

    private static List<Map<?, ?>> bodies(Map<?, ?> operation) {
        List<Map<?, ?>> schemas = new ArrayList<>();
        if (operation.get("requestBody") instanceof Map<?, ?> body) {
            ((Map<?, ?>) body.get("content"))
                .forEach((type, content) -> schemas.add((Map<?, ?>) ((Map<?, ?>) content).get("schema")));
        }
        return schemas;
    }

    /** The properties of a schema and of those that it is combined from. */
    private static Set<String> properties(Map<?, ?> schema) {
        if (schema.containsKey("$ref")) {
            Map<?, ?> schemas = (Map<?, ?>) ((Map<?, ?>) document.get("components")).get("schemas");
            return properties((Map<?, ?>) schemas.get(nameOf(schema)));
        }
        Set<String> names = new TreeSet<>();
        if (schema.get("properties") instanceof Map<?, ?> own) {
            own.keySet().forEach(name -> names.add((String) name));
        }
        for (String part : List.of("allOf", "oneOf", "anyOf")) {
            list(schema.get(part)).forEach(one -> names.addAll(properties((Map<?, ?>) one)));
        }
        return names;
    }

    private static String nameOf(Map<?, ?> schema) {
        String ref = (String) schema.get("$ref");
        return ref.substring(ref.lastIndexOf('/') + 1);
    }

    private static List<?> list(Object value) {
        return value instanceof List<?> list ? list : List.of();
    }
}
