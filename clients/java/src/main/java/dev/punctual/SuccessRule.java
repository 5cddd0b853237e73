package dev.punctual;

import java.util.List;
import java.util.Map;

/**
 * Which answers of a webhook are a success, instead of any 2xx. {@code json} has the values that the body must
 * have, by JSON pointer.
 */
public record SuccessRule(List<Integer> statuses, Map<String, Object> json) {}
