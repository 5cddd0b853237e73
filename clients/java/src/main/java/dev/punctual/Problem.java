package dev.punctual;

import java.util.List;

/**
 * A problem document (RFC 9457): what was wrong with a call. {@code field} is the field to blame, if it is one;
 * {@code existing} is the task that has the key, after a conflict.
 */
public record Problem(
        String type,
        String title,
        int status,
        String detail,
        String field,
        Task existing,
        List<String> reasons) {}
