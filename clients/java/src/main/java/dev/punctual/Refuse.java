package dev.punctual;

/** Thrown by a handler: no further attempt makes sense. The fire becomes a dead letter. */
public final class Refuse extends RuntimeException {
    private static final long serialVersionUID = 1;

    private Refuse(String reason) {
        super(reason, null, false, false);
    }

    public static Refuse because(String reason) {
        return new Refuse(reason);
    }
}
