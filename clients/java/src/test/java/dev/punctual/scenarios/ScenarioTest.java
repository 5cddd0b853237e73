package dev.punctual.scenarios;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.punctual.Json;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/**
 * All scenarios of clients/scenarios, one test each. With {@code PUNCTUAL_SCENARIOS=serve} those that fit into ten seconds
 * run in real time.
 */
@Execution(ExecutionMode.CONCURRENT)
final class ScenarioTest {
    private static final Duration REAL_TIME_MAX = Duration.ofSeconds(10);
    private static final boolean REAL_TIME = "serve".equals(System.getenv("PUNCTUAL_SCENARIOS"));

    @TestFactory
    Stream<DynamicTest> scenarios() throws IOException {
        List<Path> files;
        try (Stream<Path> all = Files.list(Path.of("../scenarios"))) {
            files = all.filter(path -> path.toString().endsWith(".json")).sorted().toList();
        }
        assertTrue(files.size() > 50, "only " + files.size() + " scenarios");
        return files.stream().filter(path -> !REAL_TIME || fits(read(path)))
            .map(path -> DynamicTest.dynamicTest(path.getFileName().toString(), () -> run(read(path))));
    }

    private static void run(Map<?, ?> file) throws Exception {
        try (Scenario scenario = new Scenario(file, REAL_TIME)) {
            scenario.run();
        }
    }

    private static Map<?, ?> read(Path path) {
        try {
            return Json.read(Files.readAllBytes(path), Map.class);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Whether a scenario can run in real time on one broker: without a date, and within ten seconds. */
    private static boolean fits(Map<?, ?> file) {
        if ("cluster".equals(file.get("broker"))) {
            return false;
        }
        Duration all = Duration.ZERO;
        for (Object step : (List<?>) file.get("steps")) {
            Map<?, ?> verbs = (Map<?, ?>) step;
            if (verbs.containsKey("clock")) {
                return false;
            }
            if (verbs.get("advance") instanceof Map<?, ?> move) {
                if (move.containsKey("to")) {
                    return false;
                }
                all = all.plus(Arguments.as(move.get("by"), Duration.class));
            }
        }
        return !file.containsKey("clock") && all.compareTo(REAL_TIME_MAX) <= 0;
    }
}
