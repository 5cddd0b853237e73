package dev.punctual;

import java.util.List;

/** One page of a list; {@code next} is the cursor of the next one, null on the last. */
public record Page<T>(List<T> items, String next) {}
