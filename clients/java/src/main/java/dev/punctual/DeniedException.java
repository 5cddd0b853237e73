package dev.punctual;

/** The token is missing, wrong, or has no right to the call: use another one. */
public final class DeniedException extends PunctualException {
    private static final long serialVersionUID = 1;

    DeniedException(Problem problem) {
        super(problem);
    }
}
