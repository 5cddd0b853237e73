package dev.punctual;

/** The broker failed: tell its operator. */
public final class ServerException extends PunctualException {
    private static final long serialVersionUID = 1;

    ServerException(Problem problem) {
        super(problem);
    }
}
