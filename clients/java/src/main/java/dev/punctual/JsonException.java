package dev.punctual;

/** Text that is not JSON, or JSON that does not fit the type that was asked for. */
public final class JsonException extends RuntimeException {
    private static final long serialVersionUID = 1;

    JsonException(String message) {
        super(message);
    }

    JsonException(String message, Throwable cause) {
        super(message, cause);
    }
}
