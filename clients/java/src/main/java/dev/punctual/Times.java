package dev.punctual;

import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeFormatterBuilder;
import java.time.format.DateTimeParseException;
import java.time.temporal.ChronoUnit;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Durations and times as the API spells them. It counts milliseconds; smaller parts are rounded up. */
final class Times {
    private static final Pattern PART = Pattern.compile("(\\d+(?:\\.\\d+)?)(ms|[smhdw])");
    private static final String[] UNITS = {"d", "h", "m", "s", "ms"};
    private static final long[] MILLIS = {86_400_000, 3_600_000, 60_000, 1_000, 1};

    private static final DateTimeFormatter INSTANT = new DateTimeFormatterBuilder().appendInstant(3).toFormatter(Locale.ROOT);

    private Times() {}

    static String format(Duration duration) {
        if (duration.isNegative()) {
            throw new IllegalArgumentException("a duration must not be negative: " + duration);
        }
        long millis = Math.addExact(duration.toMillis(), duration.getNano() % 1_000_000 == 0 ? 0 : 1);
        if (millis == 0) {
            return "0s";
        }
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < UNITS.length; i++) {
            long count = millis / MILLIS[i];
            millis %= MILLIS[i];
            if (count > 0) {
                text.append(count).append(UNITS[i]);
            }
        }
        return text.toString();
    }

    static Duration parseDuration(String text) {
        if (text.startsWith("P") || text.startsWith("p")) {
            return parseIso(text);
        }
        Matcher part = PART.matcher(text);
        Duration sum = Duration.ZERO;
        int end = 0;
        while (part.find() && part.start() == end) {
            double count = Double.parseDouble(part.group(1));
            sum = sum.plusNanos(Math.round(count * 1e6 * millisOf(part.group(2)) % 1e6))
                .plusMillis((long) Math.floor(count * millisOf(part.group(2))));
            end = part.end();
        }
        if (end == 0 || end != text.length()) {
            throw new IllegalArgumentException("not a duration: \"" + text + "\"; write for example 15m, 1h30m or PT15M");
        }
        return sum;
    }

    private static Duration parseIso(String text) {
        try {
            return Duration.parse(text);
        } catch (DateTimeParseException e) {
            throw new IllegalArgumentException("not a duration: \"" + text + "\"", e);
        }
    }

    private static long millisOf(String unit) {
        switch (unit.toLowerCase(Locale.ROOT)) {
            case "ms":
                return 1;
            case "s":
                return 1_000;
            case "m":
                return 60_000;
            case "h":
                return 3_600_000;
            case "d":
                return 86_400_000;
            default:
                return 7 * 86_400_000L;
        }
    }

    static String format(Instant instant) {
        Instant millis = instant.truncatedTo(ChronoUnit.MILLIS);
        return INSTANT.format(millis.equals(instant) ? millis : millis.plusMillis(1));
    }

    static Instant parseInstant(String text) {
        try {
            return OffsetDateTime.parse(text).toInstant();
        } catch (DateTimeParseException e) {
            throw new IllegalArgumentException("not a time in RFC 3339: \"" + text + "\"", e);
        }
    }
}
