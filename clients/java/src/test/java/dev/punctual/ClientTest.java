package dev.punctual;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.punctual.support.Broker;
import java.time.Duration;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

final class ClientTest {
    private static final Duration HOUR = Duration.ofHours(1);
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
    void aTaskIsScheduledReadPausedTouchedAndCancelled() {
        Punctual p = client("tasks");
        Task sent = p.schedule("größe/1 ü").in(HOUR).toQueue("q").payload(new Order(7)).label("a", "b").send();
        assertEquals(State.SCHEDULED, sent.state());
        assertEquals(new Order(7), p.get("größe/1 ü").payload(Order.class));
        assertEquals(State.PAUSED, p.pause(sent.id()).state());
        assertEquals(State.SCHEDULED, p.resume(sent.id()).state());
        assertTrue(p.touch(sent.id()).in(Duration.ofHours(2)).send().fireAt().isAfter(sent.fireAt()));
        assertEquals(WaitingFor.TIME, p.explain(sent.id()).waitingFor());
        assertInstanceOf(Cancelled.class, p.cancel("größe/1 ü"));
        assertInstanceOf(NotFound.class, p.cancel("never"));
        assertThrows(NotFoundException.class, () -> p.get("never"));
    }

    @Test
    void errorsCarryTheProblemDocument() {
        Punctual p = client("errors");
        InvalidException wrong = assertThrows(InvalidException.class, () -> p.schedule("a").cron("x").toQueue("q").send());
        assertEquals("cron", wrong.problem().field());
        p.schedule("a").in(HOUR).toQueue("q").send();
        ConflictException taken =
            assertThrows(ConflictException.class, () -> p.schedule("a").in(HOUR).toQueue("q").createOnly().send());
        assertNotNull(taken.problem().existing());
        assertEquals(412, assertThrows(ConflictException.class,
            () -> p.schedule("a").in(HOUR).toQueue("q").ifVersion(99).send()).problem().status());
    }

    @Test
    void aBatchHasOneResultEachAndListsReadAllPages() {
        Punctual p = client("batch");
        List<NewTask> tasks = new ArrayList<>();
        for (int i = 0; i < 25; i++) {
            tasks.add(NewTask.key("k-" + i).in(HOUR).toQueue("q"));
        }
        tasks.add(NewTask.key("bad").field("in", "soon").toQueue("q"));
        List<ScheduleResult> results = p.scheduleMany(tasks);
        assertEquals(26, results.size());
        assertInstanceOf(ScheduleResult.Scheduled.class, results.get(0));
        assertEquals("in", assertInstanceOf(ScheduleResult.Rejected.class, results.get(25)).problem().field());
        assertEquals(25, p.list().keyPrefix("k-").limit(10).stream().count());
        List<CancelOutcome> cancelled = p.cancelMany(List.of("k-1", "none"));
        assertInstanceOf(Cancelled.class, cancelled.get(0).result());
        assertInstanceOf(NotFound.class, cancelled.get(1).result());
        assertEquals(2, p.touch(List.of("w1", "w2")).orCreate(Watch.within(HOUR).toQueue("s")).send().created());
    }

    @Test
    void readsAnswer() {
        Punctual p = client("reads");
        p.schedule("a").every(HOUR).toQueue("q").send();
        assertEquals(1, p.stats().scheduled());
        assertEquals(2, p.forecast(Duration.ofHours(2), HOUR).steps().size());
        assertEquals(2, p.preview("0 9 * * *", ZoneId.of("Europe/Berlin"), 2).fires().size());
        assertEquals(1, p.topology().brokers().size());
        assertTrue(p.whoami().admin());
        assertTrue(p.namespaces().stream().anyMatch(n -> n.name().equals("reads")));
        assertEquals(1, p.dryRun(OperationVerb.PAUSE, TaskFilter.all()).matched());
        assertEquals(0, p.series(HOUR, Duration.ofMinutes(1)).points().get(0).done());
        p.putAlarm("x", new AlarmRule(AlarmCondition.deadLetters(0), AlarmReceiver.http(HttpTarget.url("http://127.0.0.1:9/alarm")), HOUR));
        assertEquals(AlarmState.OK, p.alarm("x").state());
        p.deleteAlarm("x");
        assertEquals(List.of(), p.alarms());
        try (var live = p.live()) {
            assertEquals(1, live.iterator().next().counts().scheduled());
        }
    }

    @Test
    void aTouchBufferFlushesWhenItIsClosed() {
        Punctual p = client("touch");
        try (TouchBuffer buffer = p.touchBuffer().flushEvery(HOUR).orCreate(Watch.within(HOUR).toQueue("q")).open()) {
            buffer.touch("a");
            buffer.touch("a");
            buffer.touch("b");
        }
        assertEquals(2, p.list().toList().size());
    }

    @Test
    void aTouchBufferSendsEachKeyOncePerFlush() {
        Punctual p = client("coalesce");
        p.touch(List.of("a")).orCreate(Watch.within(HOUR).toQueue("q")).send();
        try (TouchBuffer buffer = p.touchBuffer().flushEvery(HOUR).open()) {
            for (int i = 0; i < 100; i++) {
                buffer.touch("a");
            }
            buffer.flush();
            assertEquals(1, p.explain("a").touches());
            buffer.flush();
        }
        assertEquals(1, p.explain("a").touches());
    }

    @Test
    void theNextBrokerIsUsedAtOnceIfOneDoesNotAnswer() {
        Punctual p = Punctual.connect("http://127.0.0.1:9", broker.url()).namespace("several");
        assertEquals("a", p.schedule("a").in(HOUR).toQueue("q").send().key());
        assertTrue(p.alive());
    }

    @Test
    void noBrokerAtAllIsAnExceptionThatNamesTheAddress() {
        Punctual p = Punctual.builder().urls("http://127.0.0.1:9").triesMax(2).connect().namespace("none");
        assertTrue(assertThrows(UnavailableException.class, p::stats).getMessage().contains("127.0.0.1:9"));
    }

    @Test
    void touchRulesCreateWhatIsTouched() {
        Punctual p = client("rules");
        assumeTrue(p.openapi().toString().contains("/rules/{prefix}"), "a broker without touch rules");
        TouchRule rule = p.putRule("unit:", Watch.within(HOUR).toQueue("silent").onReturn(true));
        assertEquals("unit:", rule.prefix());
        assertEquals(List.of("unit:"), p.rules().stream().map(TouchRule::prefix).toList());
        assertEquals("1h", rule.create(java.util.Map.class).get("within"));
        TouchManyAnswer touched = p.touch(List.of("unit:1", "other:1")).send();
        assertEquals(1, touched.created());
        assertEquals(HOUR, p.get("unit:1").within());
        p.deleteRule("unit:");
        assertEquals(List.of(), p.rules());
        assertEquals("urn:punctual:rule-not-found",
            assertThrows(NotFoundException.class, () -> p.deleteRule("unit:")).problem().type());
    }
}
