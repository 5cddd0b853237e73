package dev.punctual.support;

import java.time.Duration;
import java.util.function.BooleanSupplier;

/** Waits for something that happens in another process or thread. */
public final class Await {
    /** Far more than anything here takes on a busy machine. */
    private static final Duration WAIT_MAX = Duration.ofSeconds(60);
    private static final Duration PAUSE = Duration.ofMillis(20);

    private Await() {}

    public static void until(String what, BooleanSupplier condition) {
        long deadline = System.nanoTime() + WAIT_MAX.toNanos();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() - deadline > 0) {
                throw new AssertionError("not within " + WAIT_MAX.toSeconds() + " s: " + what);
            }
            try {
                Thread.sleep(PAUSE.toMillis());
            } catch (InterruptedException e) {
                throw new AssertionError("interrupted while waiting: " + what, e);
            }
        }
    }
}
