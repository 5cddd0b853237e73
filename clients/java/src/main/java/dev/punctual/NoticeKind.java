package dev.punctual;

/** What a notice of an alarm reports. */
public enum NoticeKind {
    RAISED, REPEATED, OVER, TEST
}
