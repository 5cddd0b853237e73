package dev.punctual;

import java.time.Instant;

/** The last notice of an alarm. */
public record AlarmNotice(Instant at, NoticeKind kind, NoticeState state, String reason, Answer answer) {}
