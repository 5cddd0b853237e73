package dev.punctual;

/**
 * Handles a delivery. When it returns, the delivery is acknowledged. {@link Retry} and {@link Refuse} say what else should
 * become of it; any other exception is a failed attempt.
 */
@FunctionalInterface
public interface Handler<T> {
    void handle(Fire<T> fire) throws Exception;

    /** Handles a delivery and returns the result that the history of the task keeps; null for none. */
    @FunctionalInterface
    interface Returning<T> {
        Object handle(Fire<T> fire) throws Exception;
    }
}
