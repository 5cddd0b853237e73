package dev.punctual;

import java.util.List;

/** Which statuses of a webhook refuse, in addition to 410: no further attempt. */
public record RefuseRule(List<Integer> statuses) {}
