package dev.punctual;

import java.time.Duration;

/** The task that a touch creates where it is missing. */
public final class Watch {
    private Watch() {}

    /** A watch that fires when it was not touched for this long. */
    public static NewTask within(Duration silence) {
        return NewTask.withoutKey().within(silence);
    }
}
