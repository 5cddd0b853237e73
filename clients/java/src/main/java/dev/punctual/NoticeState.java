package dev.punctual;

/** Whether a notice was delivered. */
public enum NoticeState {
    WAITING, DONE, FAILED
}
