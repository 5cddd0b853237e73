package dev.punctual;

import java.time.Instant;
import java.util.List;

/** What a task waits for, or how it ended. */
public record Explanation(
        String summary,
        WaitingFor waitingFor,
        List<String> details,
        Task task,
        int partition,
        String owner,
        Integer epoch,
        Long touches,
        Instant touchedAt,
        List<NextFire> next,
        List<FireRecord> fires) {}
