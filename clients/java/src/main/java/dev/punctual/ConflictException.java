package dev.punctual;

/**
 * The state of the task does not allow the call, or another caller was faster: read the task again.
 * {@code problem().existing()} is the task that has the key, if that is the conflict.
 */
public final class ConflictException extends PunctualException {
    private static final long serialVersionUID = 1;

    ConflictException(Problem problem) {
        super(problem);
    }
}
