package dev.punctual;

import java.time.Instant;

/** What a broker answers to a cancel, in one shape for all results. */
record CancelAnswer(@JsonName("result") Result name, Integer attempt, Instant firedAt, String key, String id,
    Problem problem) {
    enum Result {
        CANCELLED, FIRING, ALREADY_FIRED, NOT_FOUND
    }

    CancelResult result() {
        if (name == null) {
            throw new ServerException(PunctualException.unreadable(200, "unknown result of a cancel"));
        }
        return switch (name) {
            case CANCELLED -> new Cancelled();
            case FIRING -> new Firing(attempt == null ? 0 : attempt);
            case ALREADY_FIRED -> new AlreadyFired(firedAt);
            case NOT_FOUND -> new NotFound(problem);
        };
    }

    CancelOutcome outcome() {
        return new CancelOutcome(key, id, name == null ? null : result(), problem);
    }
}
