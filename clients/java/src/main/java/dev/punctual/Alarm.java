package dev.punctual;

import java.time.Duration;
import java.time.Instant;

/** An alarm with its state. {@code value} is a number, a duration as text, or null. */
public record Alarm(
        String name,
        AlarmCondition when,
        AlarmReceiver to,
        Duration repeatAfter,
        AlarmState state,
        Instant since,
        JsonValue value,
        long notices,
        AlarmNotice lastNotice) {}
