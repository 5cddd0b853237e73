package dev.punctual;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.punctual.support.Broker;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/**
 * Runs the examples of docs/sdks/java.md with the jar against a broker of their own, and compares what they print with the
 * text that follows them.
 */
final class DocsTest {
    private static final Pattern BLOCK =
        Pattern.compile("^```java( \\w+)?\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", Pattern.MULTILINE | Pattern.DOTALL);
    private static final Path DIRECTORY = Path.of("build/docs");
    private static final int SECONDS_MAX = 60;

    @TestFactory
    List<DynamicTest> examples() throws IOException {
        String page = Files.readString(Path.of("../../docs/sdks/java.md"));
        List<DynamicTest> tests = new ArrayList<>();
        String imports = "";
        Matcher blocks = BLOCK.matcher(page);
        while (blocks.find()) {
            String kind = blocks.group(1) == null ? "" : blocks.group(1).strip();
            String code = blocks.group(2);
            String output = blocks.group(3);
            String all = imports;
            String name = "Example" + (tests.size() + 1);
            switch (kind) {
                case "imports" -> imports = code;
                case "test" -> tests.add(DynamicTest.dynamicTest("test", () -> runTest(code)));
                default -> tests.add(DynamicTest.dynamicTest(name, () -> run(name, all, code, output)));
            }
        }
        assertTrue(tests.size() >= 7, "only " + tests.size() + " examples");
        return tests;
    }

    private static void run(String name, String imports, String code, String output) throws Exception {
        StringBuilder head = new StringBuilder(imports);
        StringBuilder body = new StringBuilder();
        code.lines().forEach(line -> (line.startsWith("import ") ? head : body).append(line).append('\n'));
        Path file = DIRECTORY.resolve(name + ".java");
        Files.createDirectories(DIRECTORY);
        Files.writeString(file, head + "public class " + name + " {\npublic static void main(String[] args) throws Exception {\n"
            + body + "}\n}\n");
        try (Broker broker = Broker.serve("--signing-secret", "shop=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")) {
            String printed = execute(broker.url(), "java", "-cp", "build/punctual.jar", file.toString());
            assertEquals(output == null ? "" : output, printed);
        }
    }

    private static void runTest(String code) throws Exception {
        Files.createDirectories(DIRECTORY.resolve("classes"));
        Path file = DIRECTORY.resolve("SilenceTest.java");
        Files.writeString(file, code);
        String jars = Stream.of("build/punctual.jar", "build/punctual-testing.jar", System.getenv("JUNIT_CLASSPATH"))
            .reduce((a, b) -> a + File.pathSeparator + b).orElseThrow();
        String classes = DIRECTORY.resolve("classes").toString();
        execute("", "javac", "-cp", jars, "-d", classes, file.toString());
        String printed = execute("", "java", "-cp", classes + File.pathSeparator + jars,
            "org.junit.platform.console.ConsoleLauncher", "--disable-banner", "--select-class", "SilenceTest",
            "--fail-if-no-tests");
        assertTrue(printed.contains("1 tests successful"), printed);
    }

    private static String execute(String url, String... command) throws Exception {
        Path out = Files.createTempFile(DIRECTORY, "out", "");
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(out.toFile());
        builder.environment().put("PUNCTUAL_URL", url);
        Process process = builder.start();
        boolean ended = process.waitFor(SECONDS_MAX, TimeUnit.SECONDS);
        process.destroyForcibly();
        String printed = Files.readString(out);
        assertTrue(ended, "still runs after " + SECONDS_MAX + " s: " + printed);
        assertEquals(0, process.exitValue(), printed);
        return printed;
    }
}
