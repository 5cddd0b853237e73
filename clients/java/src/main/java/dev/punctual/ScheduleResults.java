package dev.punctual;

import java.nio.charset.StandardCharsets;
import java.util.AbstractList;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.RandomAccess;

/** The results of a batch. Their bounds are found at once; each is read when it is asked for. */
final class ScheduleResults extends AbstractList<ScheduleResult> implements RandomAccess {
    private static final byte[] ID_FIRST = "{\"id\":\"".getBytes(StandardCharsets.US_ASCII);

    private final byte[] bytes;
    private final int[] bounds;

    private ScheduleResults(byte[] bytes, int[] bounds) {
        this.bytes = bytes;
        this.bounds = bounds;
    }

    static List<ScheduleResult> read(byte[] bytes) {
        try {
            JsonReader reader = new JsonReader(bytes);
            List<Integer> bounds = new ArrayList<>();
            reader.enter('{');
            do {
                if (reader.readName().equals("results")) {
                    bounds(reader, bounds);
                } else {
                    reader.skip();
                }
            } while (reader.more('}'));
            return new ScheduleResults(bytes, bounds.stream().mapToInt(Integer::intValue).toArray());
        } catch (JsonException e) {
            throw new ServerException(PunctualException.unreadable(200, "unreadable answer: " + e.getMessage()));
        }
    }

    private static void bounds(JsonReader reader, List<Integer> bounds) {
        reader.enter('[');
        if (reader.leaveIfEmpty(']')) {
            return;
        }
        do {
            reader.peek();
            bounds.add(reader.position());
            reader.skip();
            bounds.add(reader.position());
        } while (reader.more(']'));
    }

    @Override
    public ScheduleResult get(int i) {
        boolean task = startsWithId(bounds[2 * i]) || reader(i).as(Line.class).id() != null;
        return task ? new ScheduleResult.Scheduled(() -> reader(i).as(Task.class))
            : new ScheduleResult.Rejected(reader(i).as(Problem.class));
    }

    private Element reader(int i) {
        return new Element(new JsonReader(bytes, bounds[2 * i], bounds[2 * i + 1]));
    }

    private record Element(JsonReader reader) {
        <T> T as(Class<T> type) {
            return Json.readAs(reader, type);
        }
    }

    /** Brokers write the id of a task first; a problem has none. */
    private boolean startsWithId(int from) {
        return Arrays.equals(bytes, from, Math.min(bytes.length, from + ID_FIRST.length), ID_FIRST, 0, ID_FIRST.length);
    }

    @Override
    public int size() {
        return bounds.length / 2;
    }

    /** What tells a task from a problem. */
    private record Line(String id) {}
}
