package dev.punctual;

/** What became of a failure, a refusal or an extension. {@code STALE}: the attempt was over before. */
public enum SettleResult {
    FAILED, REFUSED, EXTENDED, STALE
}
