package dev.punctual;

/** What the call names does not exist, or is past its retention. */
public final class NotFoundException extends PunctualException {
    private static final long serialVersionUID = 1;

    NotFoundException(Problem problem) {
        super(problem);
    }
}
