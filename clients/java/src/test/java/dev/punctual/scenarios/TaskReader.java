package dev.punctual.scenarios;

import dev.punctual.Dst;
import dev.punctual.Guarantee;
import dev.punctual.JsonException;
import dev.punctual.Misfire;
import dev.punctual.NewTask;
import dev.punctual.Overlap;
import dev.punctual.RetryPolicy;
import dev.punctual.Target;
import dev.punctual.TaskFields;
import dev.punctual.Json;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.util.Base64;
import java.util.Map;
import java.util.function.Function;

/** Fills in a task of a scenario: with the typed methods of the client, and by name what has the wrong type. */
final class TaskReader {
    private TaskReader() {}

    static NewTask task(Object json) {
        return fill(NewTask.withoutKey(), json);
    }

    static <T extends TaskFields<T>> T fill(T task, Object json) {
        Map<?, ?> map = (Map<?, ?>) json;
        if (map.get("payload_base64") instanceof String base64 && isBase64(base64)) {
            task.payload(Base64.getDecoder().decode(base64), (String) map.get("content_type"));
        }
        map.forEach((name, value) -> set(task, (String) name, value));
        return task;
    }

    private static boolean isBase64(String text) {
        try {
            return Base64.getEncoder().encodeToString(Base64.getDecoder().decode(text)).equals(text);
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    private static <T extends TaskFields<T>> void set(T task, String name, Object value) {
        switch (name) {
            case "in" -> typed(task, name, value, Duration.class, task::in);
            case "at" -> typed(task, name, value, Instant.class, task::at);
            case "cron" -> typed(task, name, value, String.class, task::cron);
            case "every" -> typed(task, name, value, Duration.class, task::every);
            case "within" -> typed(task, name, value, Duration.class, task::within);
            case "timezone" -> typed(task, name, value, ZoneId.class, task::zone);
            case "starts_at" -> typed(task, name, value, Instant.class, task::startsAt);
            case "ends_at" -> typed(task, name, value, Instant.class, task::endsAt);
            case "misfire" -> typed(task, name, value, Misfire.class, task::misfire);
            case "overlap" -> typed(task, name, value, Overlap.class, task::overlap);
            case "dst" -> typed(task, name, value, Dst.class, task::dst);
            case "jitter" -> typed(task, name, value, Duration.class, task::jitter);
            case "on_return" -> typed(task, name, value, Boolean.class, task::onReturn);
            case "postpone_max" -> typed(task, name, value, Duration.class, task::postponeMax);
            case "target" -> typed(task, name, value, Target.class, task::to);
            case "payload" -> task.payload(value);
            case "guarantee" -> typed(task, name, value, Guarantee.class, task::guarantee);
            case "retry" -> typed(task, name, value, RetryPolicy.class, task::retry);
            case "timeout" -> typed(task, name, value, Duration.class, task::timeout);
            case "expires_after" -> typed(task, name, value, Duration.class, task::expiresAfter);
            case "paused" -> typed(task, name, value, Boolean.class, task::paused);
            case "on_done" -> typed(task, name, value, Target.class, task::onDone);
            case "on_dead" -> typed(task, name, value, Target.class, task::onDead);
            default -> task.field(name, value);
        }
    }

    /** Uses the typed method if the value survives the type, so that wrong values still reach the broker. */
    private static <T extends TaskFields<T>, V> void typed(T task, String name, Object value, Class<V> type,
        Function<V, T> method) {
        V read;
        try {
            read = type == ZoneId.class ? type.cast(ZoneId.of((String) value)) : Arguments.as(value, type);
        } catch (JsonException | IllegalArgumentException | ClassCastException | java.time.DateTimeException e) {
            task.field(name, value);
            return;
        }
        boolean same = read instanceof Duration || read instanceof Instant
            || read != null && Json.read(Json.write(read), Object.class).equals(value);
        if (same) {
            method.apply(read);
        } else {
            task.field(name, value);
        }
    }
}
