package dev.punctual;

import java.util.List;

/** The largest groups of dead letters; {@code more} counts the letters of other groups. */
public record DeadGroups(List<DeadGroup> groups, long more) {}
