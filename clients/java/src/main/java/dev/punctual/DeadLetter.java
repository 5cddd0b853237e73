package dev.punctual;

import java.time.Instant;
import java.util.List;

/** A fire that ended without success, with its attempts and its task. */
public record DeadLetter(String fireId, DeadReason reason, Instant diedAt, List<Attempt> attempts, Task task) {}
