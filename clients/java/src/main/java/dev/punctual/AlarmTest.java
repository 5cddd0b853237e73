package dev.punctual;

/** What became of a test notice. */
public record AlarmTest(NoticeState state, String reason, Answer answer) {}
