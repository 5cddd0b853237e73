package dev.punctual;

/** No broker could do it, and nothing was done: try again later. */
public final class UnavailableException extends PunctualException {
    private static final long serialVersionUID = 1;

    UnavailableException(Problem problem) {
        super(problem);
    }
}
