package dev.punctual;

/** The request is wrong: correct what {@code problem().field()} and the message name. */
public final class InvalidException extends PunctualException {
    private static final long serialVersionUID = 1;

    InvalidException(Problem problem) {
        super(problem);
    }
}
