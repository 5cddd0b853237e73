package dev.punctual;

/** A webhook that is not signed as it should be. Answer 401 and do nothing. */
public final class WebhookException extends Exception {
    private static final long serialVersionUID = 1;

    WebhookException(String message) {
        super(message);
    }
}
