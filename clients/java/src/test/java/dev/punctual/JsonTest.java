package dev.punctual;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

final class JsonTest {
    record Line(String articleName, int count, Duration within, Instant at, List<Integer> parts, Boolean gift) {}

    @Test
    void aRecordSurvivesWritingAndReading() {
        Line line = new Line("a\"\\\n\u0001 ü €  😀", -7, Duration.ofMinutes(90), Instant.parse("2027-01-04T08:00:00.250Z"),
            List.of(1, 2), null);
        assertEquals(line, Json.read(Json.write(line), Line.class));
    }

    @Test
    void namesAreInSnakeCaseAndUnknownFieldsAreIgnored() {
        Line line = Json.read("{\"article_name\":\"x\",\"new\":{\"a\":[1,{}]},\"count\":3}", Line.class);
        assertEquals("x", line.articleName());
        assertEquals(3, line.count());
        assertNull(line.parts());
    }

    @Test
    void numbersKeepTheirValue() {
        for (String number : List.of("0", "-1", "9223372036854775807", "123456789012345678901234567890", "0.1", "1.5e300",
            "0.12345678901234567890")) {
            assertEquals(number.toLowerCase(java.util.Locale.ROOT), Json.write(Json.read(number, Object.class))
                .replace("E+", "e").replace("E", "e"), number);
        }
    }

    @Test
    void whatIsNotJsonIsRefused() {
        for (String text : List.of("", "{", "[1,]", "{\"a\" 1}", "01", "1.", "+1", "nul", "\"\\x\"", "\"a", "1 2", "\"\n\"",
            "{\"a\":1,}", "[".repeat(100_000), "\"\\ud800\\u0041", "tru")) {
            assertThrows(JsonException.class, () -> Json.read(text, Object.class), text.length() > 40 ? "nested" : text);
        }
    }

    @Test
    void durationsAreWrittenAsTheBrokerWritesThem() {
        Map<Duration, String> cases = Map.of(Duration.ofMinutes(15), "15m", Duration.ofHours(48), "2d", Duration.ZERO, "0s",
            Duration.ofMillis(1_500), "1s500ms", Duration.ofDays(30), "30d");
        cases.forEach((duration, text) -> {
            assertEquals('"' + text + '"', Json.write(duration));
            assertEquals(duration, Json.read('"' + text + '"', Duration.class));
        });
        assertEquals(Duration.ofMinutes(15), Json.read("\"PT15M\"", Duration.class));
    }
}
