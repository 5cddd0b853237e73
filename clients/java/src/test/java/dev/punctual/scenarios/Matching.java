package dev.punctual.scenarios;

import dev.punctual.Json;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** How expectations of scenarios are filled in and compared with answers. Values are maps, lists, texts and numbers. */
final class Matching {
    private static final Set<String> CONDITIONS =
        Set.of("$lt", "$gt", "$length", "$any", "$absent", "$starts", "$contains");
    private static final Pattern NAME = Pattern.compile("\\$([a-z][a-z0-9_]*)");

    private Matching() {}

    /** Replaces {@code $name} and {@code $repeat}. Conditions stay. */
    static Object expand(Object value, Map<String, Object> names) {
        if (value instanceof String text) {
            Matcher matcher = NAME.matcher(text);
            return matcher.replaceAll(m -> Matcher.quoteReplacement(
                names.containsKey(m.group(1)) ? String.valueOf(names.get(m.group(1))) : m.group()));
        }
        if (value instanceof List<?> list) {
            List<Object> all = new ArrayList<>();
            list.forEach(one -> all.add(expand(one, names)));
            return all;
        }
        if (value instanceof Map<?, ?> map) {
            if (map.containsKey("$repeat")) {
                return ((String) map.get("$repeat")).repeat(((Number) map.get("times")).intValue());
            }
            Map<String, Object> all = new LinkedHashMap<>();
            map.forEach((key, one) -> all.put((String) (CONDITIONS.contains(key) ? key : expand(key, names)),
                expand(one, names)));
            return all;
        }
        return value;
    }

    static void match(Object want, Object got, String path) {
        if (want instanceof Map<?, ?> map) {
            String condition = condition(map, path);
            if (condition == null) {
                matchObject(map, got, path);
            } else if (!holds(condition, map.get(condition), got)) {
                throw differs(path, want, got);
            }
        } else if (want instanceof List<?> list) {
            if (!(got instanceof List<?> others) || others.size() != list.size()) {
                throw differs(path, want, got);
            }
            for (int i = 0; i < list.size(); i++) {
                match(list.get(i), others.get(i), path + "." + i);
            }
        } else if (!equal(want, got)) {
            throw differs(path, want, got);
        }
    }

    private static String condition(Map<?, ?> map, String path) {
        for (Object key : map.keySet()) {
            if (((String) key).startsWith("$")) {
                if (map.size() != 1 || !CONDITIONS.contains(key)) {
                    throw new AssertionError(path + ": unknown condition " + Json.write(map));
                }
                return (String) key;
            }
        }
        return null;
    }

    private static void matchObject(Map<?, ?> want, Object got, String path) {
        if (!(got instanceof Map<?, ?> others)) {
            throw differs(path, want, got);
        }
        want.forEach((key, one) -> {
            boolean absent = one instanceof Map<?, ?> map && map.containsKey("$absent");
            if (absent == others.containsKey(key)) {
                throw differs(path + "." + key, one, others.containsKey(key) ? others.get(key) : "nothing in " + shown(got));
            }
            if (!absent) {
                match(one, others.get(key), path + "." + key);
            }
        });
    }

    private static boolean holds(String condition, Object operand, Object got) {
        return switch (condition) {
            case "$lt" -> got instanceof Number number && decimal(number).compareTo(decimal(operand)) < 0;
            case "$gt" -> got instanceof Number number && decimal(number).compareTo(decimal(operand)) > 0;
            case "$length" -> equal(operand, length(got));
            case "$any" -> true;
            case "$starts" -> got instanceof String text && text.startsWith((String) operand);
            case "$contains" -> got instanceof String text && text.contains((String) operand);
            default -> false;
        };
    }

    private static int length(Object got) {
        if (got instanceof String text) {
            return text.codePointCount(0, text.length());
        }
        return got instanceof List<?> list ? list.size() : got instanceof Map<?, ?> map ? map.size() : -1;
    }

    private static boolean equal(Object want, Object got) {
        if (want instanceof Number && got instanceof Number) {
            return decimal(want).compareTo(decimal(got)) == 0;
        }
        return want == null ? got == null : want.equals(got);
    }

    private static BigDecimal decimal(Object number) {
        return new BigDecimal(number.toString());
    }

    /** The value at a path such as {@code deliveries.0.token}. */
    static Object pick(Object answer, String path) {
        Object found = answer;
        for (String part : path.split("\\.")) {
            found = found instanceof List<?> list ? list.get(Integer.parseInt(part)) : ((Map<?, ?>) found).get(part);
            if (found == null) {
                throw new AssertionError("nothing at " + path + " of " + shown(answer));
            }
        }
        return found;
    }

    private static AssertionError differs(String path, Object want, Object got) {
        return new AssertionError(path + ": expected " + shown(want) + ", got " + shown(got));
    }

    static String shown(Object value) {
        String text = Json.write(value);
        return text.length() <= 600 ? text : text.substring(0, 600) + " …";
    }
}
