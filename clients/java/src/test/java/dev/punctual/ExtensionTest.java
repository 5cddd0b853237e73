package dev.punctual;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.punctual.testing.PunctualExtension;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

final class ExtensionTest {
    private static final Instant START = Instant.parse("2027-01-04T08:00:00Z");

    @RegisterExtension
    static PunctualExtension punctual = PunctualExtension.virtualClock().startingAt(START);

    @Test
    void theSilenceOfTwoDaysFiresAtItsTime() {
        Punctual p = punctual.client();
        p.touch(List.of("lamp-7")).orCreate(Watch.within(Duration.ofHours(48)).toQueue("silent")).send();
        punctual.advance(Duration.ofHours(48).minusMillis(1));
        assertEquals(List.of(), punctual.fired("silent"));
        punctual.advance(Duration.ofMillis(1));
        Delivery fired = punctual.fired("silent").get(0);
        assertEquals("lamp-7", fired.key());
        assertEquals(START.plus(Duration.ofHours(48)), fired.fireAt());
    }

    @Test
    void everyTestHasABrokerOfItsOwn() {
        assertEquals(START, punctual.client().clock().read().now());
        assertEquals(List.of(), punctual.client().list().toList());
        punctual.advanceTo(START.plusSeconds(1));
        assertEquals(START.plusSeconds(1), punctual.client().clock().read().now());
    }

    @Test
    void theClockRunsAndStops() {
        VirtualClock clock = punctual.client().clock();
        clock.run(1_000);
        dev.punctual.support.Await.until("a minute has passed", () -> clock.read().now().isAfter(START.plusSeconds(60)));
        Instant stopped = clock.freeze().now();
        assertTrue(stopped.isAfter(START));
        assertEquals(stopped, clock.read().now());
    }
}
