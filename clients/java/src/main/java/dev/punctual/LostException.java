package dev.punctual;

/**
 * It is not known whether the call was carried out ({@code urn:punctual:lost}, or a connection that broke): look before
 * you repeat it.
 */
public final class LostException extends PunctualException {
    private static final long serialVersionUID = 1;

    LostException(Problem problem) {
        super(problem);
    }
}
