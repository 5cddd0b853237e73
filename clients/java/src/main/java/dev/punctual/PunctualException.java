package dev.punctual;

import java.time.Duration;
import java.util.List;

/** A call that failed. There is one subclass for each thing that a caller can do about it. */
public abstract sealed class PunctualException extends RuntimeException
    permits InvalidException, DeniedException, NotFoundException, ConflictException, ThrottledException,
        UnavailableException, LostException, ServerException {
    private static final long serialVersionUID = 1;

    private final transient Problem problem;

    PunctualException(Problem problem) {
        super(problem.detail() == null ? problem.title() : problem.detail());
        this.problem = problem;
    }

    /** The problem document; its {@code status} is 0 if no broker answered. */
    public Problem problem() {
        return problem;
    }

    static PunctualException of(Problem problem, Duration retryAfter) {
        if ("urn:punctual:lost".equals(problem.type())) {
            return new LostException(problem);
        }
        switch (problem.status()) {
            case 401, 403:
                return new DeniedException(problem);
            case 404:
                return new NotFoundException(problem);
            case 409, 412:
                return new ConflictException(problem);
            case 429:
                return new ThrottledException(problem, retryAfter);
            case 502, 503, 504:
                return ofBroker(problem) ? new UnavailableException(problem) : new LostException(problem);
            default:
                return problem.status() < 500 ? new InvalidException(problem) : new ServerException(problem);
        }
    }

    /** A broker says with a 503 that nothing was done; a proxy that gives up does not know. */
    private static boolean ofBroker(Problem problem) {
        return problem.type().startsWith("urn:punctual:");
    }

    /** The answer of something that is not a broker, or of a broker that broke down. */
    static Problem unreadable(int status, String detail) {
        return new Problem("about:blank", "the answer is not a problem document", status, detail, null, null, List.of());
    }

    /** No answer at all. */
    static Problem noAnswer(String type, String detail) {
        return new Problem(type, "no broker answered", 0, detail, null, null, List.of());
    }
}
