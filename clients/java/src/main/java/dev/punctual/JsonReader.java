package dev.punctual;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads JSON (RFC 8259) from bytes, one value after the other. Nesting is bounded, so input cannot exhaust the stack. */
final class JsonReader {
    /** As deep as the broker reads payloads; deeper text is an error. */
    static final int DEPTH_MAX = 128;
    /** Digits that a {@code double} always keeps. */
    private static final int EXACT_DIGITS = 15;

    private final byte[] bytes;
    private final int end;
    private int at;
    private int depth;

    JsonReader(byte[] bytes) {
        this(bytes, 0, bytes.length);
    }

    JsonReader(byte[] bytes, int from, int end) {
        this.bytes = bytes;
        this.at = from;
        this.end = end;
    }

    int position() {
        return at;
    }

    void rewind(int position) {
        at = position;
    }

    /** The next byte that is not blank, without taking it; -1 at the end. */
    int peek() {
        while (at < end) {
            byte b = bytes[at];
            if (b != ' ' && b != '\n' && b != '\r' && b != '\t') {
                return b;
            }
            at++;
        }
        return -1;
    }

    void expect(char c) {
        if (peek() != c) {
            throw error("expected '" + c + "'");
        }
        at++;
    }

    boolean take(char c) {
        if (peek() != c) {
            return false;
        }
        at++;
        return true;
    }

    /** Takes a {@code null}, if there is one. */
    boolean takeNull() {
        if (peek() != 'n') {
            return false;
        }
        literal("null");
        return true;
    }

    void enter(char open) {
        expect(open);
        if (++depth > DEPTH_MAX) {
            throw error("nested deeper than " + DEPTH_MAX + " levels");
        }
    }

    /** After {@link #enter}: whether the container is empty, which leaves it. */
    boolean leaveIfEmpty(char close) {
        if (take(close)) {
            depth--;
            return true;
        }
        return false;
    }

    /** After an element: whether another one follows; otherwise the container is left. */
    boolean more(char close) {
        if (take(',')) {
            return true;
        }
        expect(close);
        depth--;
        return false;
    }

    String readName() {
        String name = readString();
        expect(':');
        return name;
    }

    String readString() {
        expect('"');
        int start = at;
        while (at < end) {
            byte b = bytes[at];
            if (b == '"') {
                String text = new String(bytes, start, at - start, StandardCharsets.UTF_8);
                at++;
                return text;
            }
            if (b == '\\') {
                return readEscaped(start);
            }
            if (b >= 0 && b < ' ') {
                throw error("control character in a string");
            }
            at++;
        }
        throw error("string without an end");
    }

    private String readEscaped(int start) {
        StringBuilder text = new StringBuilder(new String(bytes, start, at - start, StandardCharsets.UTF_8));
        while (at < end) {
            byte b = bytes[at];
            if (b == '"') {
                at++;
                return text.toString();
            }
            if (b == '\\') {
                text.append(readEscape());
                continue;
            }
            int from = at;
            while (at < end && bytes[at] != '"' && bytes[at] != '\\') {
                if (bytes[at] >= 0 && bytes[at] < ' ') {
                    throw error("control character in a string");
                }
                at++;
            }
            text.append(new String(bytes, from, at - from, StandardCharsets.UTF_8));
        }
        throw error("string without an end");
    }

    private char readEscape() {
        at++;
        if (at >= end) {
            throw error("string without an end");
        }
        byte b = bytes[at++];
        switch (b) {
            case '"', '\\', '/':
                return (char) b;
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'u':
                return readUnicode();
            default:
                throw error("unknown escape");
        }
    }

    private char readUnicode() {
        if (at + 4 > end) {
            throw error("string without an end");
        }
        int unit = 0;
        for (int i = 0; i < 4; i++) {
            int digit = Character.digit(bytes[at++], 16);
            if (digit < 0) {
                throw error("expected four hexadecimal digits");
            }
            unit = unit * 16 + digit;
        }
        return (char) unit;
    }

    boolean readBoolean() {
        if (peek() == 't') {
            literal("true");
            return true;
        }
        literal("false");
        return false;
    }

    private void literal(String word) {
        peek();
        if (at + word.length() > end) {
            throw error("expected a value");
        }
        for (int i = 0; i < word.length(); i++) {
            if (bytes[at + i] != word.charAt(i)) {
                throw error("expected a value");
            }
        }
        at += word.length();
    }

    /** A {@code Long} or {@code BigInteger} without fraction and exponent; otherwise a {@code Double} or {@code BigDecimal}. */
    Number readNumber() {
        peek();
        int start = at;
        boolean whole = skipNumber();
        int length = at - start;
        if (whole && length <= 18) {
            return readLong(start);
        }
        String text = new String(bytes, start, length, StandardCharsets.US_ASCII);
        if (whole) {
            BigInteger value = new BigInteger(text);
            return value.bitLength() < 64 ? (Number) value.longValue() : value;
        }
        double value = Double.parseDouble(text);
        boolean exact = length <= EXACT_DIGITS && !Double.isInfinite(value);
        return exact ? (Number) value : shortest(text, value);
    }

    private static Number shortest(String text, double value) {
        if (Double.isInfinite(value)) {
            return new BigDecimal(text);
        }
        BigDecimal decimal = new BigDecimal(text);
        return decimal.compareTo(new BigDecimal(Double.toString(value))) == 0 ? (Number) value : decimal;
    }

    private Long readLong(int start) {
        boolean negative = bytes[start] == '-';
        long value = 0;
        for (int i = negative ? start + 1 : start; i < at; i++) {
            value = value * 10 + (bytes[i] - '0');
        }
        return negative ? -value : value;
    }

    /** Skips a number and says whether it is a whole one. */
    private boolean skipNumber() {
        boolean whole = true;
        if (at < end && bytes[at] == '-') {
            at++;
        }
        if (at < end && bytes[at] == '0') {
            at++;
        } else {
            skipDigits();
        }
        if (at < end && bytes[at] == '.') {
            at++;
            skipDigits();
            whole = false;
        }
        if (at < end && (bytes[at] == 'e' || bytes[at] == 'E')) {
            at++;
            if (at < end && (bytes[at] == '+' || bytes[at] == '-')) {
                at++;
            }
            skipDigits();
            whole = false;
        }
        return whole;
    }

    private void skipDigits() {
        int start = at;
        while (at < end && bytes[at] >= '0' && bytes[at] <= '9') {
            at++;
        }
        if (at == start) {
            throw error("expected a value");
        }
    }

    Object readAny() {
        switch (peek()) {
            case '{':
                return readMap();
            case '[':
                return readList();
            case '"':
                return readString();
            case 't', 'f':
                return readBoolean();
            case 'n':
                literal("null");
                return null;
            default:
                return readNumber();
        }
    }

    private Map<String, Object> readMap() {
        Map<String, Object> map = new LinkedHashMap<>();
        enter('{');
        if (leaveIfEmpty('}')) {
            return map;
        }
        do {
            String name = readName();
            map.put(name, readAny());
        } while (more('}'));
        return map;
    }

    private List<Object> readList() {
        List<Object> list = new ArrayList<>();
        enter('[');
        if (leaveIfEmpty(']')) {
            return list;
        }
        do {
            list.add(readAny());
        } while (more(']'));
        return list;
    }

    /** Skips one value, which is checked as if it were read. */
    void skip() {
        switch (peek()) {
            case '{' -> {
                enter('{');
                if (leaveIfEmpty('}')) {
                    return;
                }
                do {
                    skipString();
                    expect(':');
                    skip();
                } while (more('}'));
            }
            case '[' -> {
                enter('[');
                if (leaveIfEmpty(']')) {
                    return;
                }
                do {
                    skip();
                } while (more(']'));
            }
            case '"' -> skipString();
            case 't', 'f' -> readBoolean();
            case 'n' -> literal("null");
            default -> skipNumber();
        }
    }

    private void skipString() {
        expect('"');
        while (at < end) {
            byte b = bytes[at++];
            if (b == '"') {
                return;
            }
            if (b == '\\') {
                at--;
                readEscape();
            } else if (b >= 0 && b < ' ') {
                throw error("control character in a string");
            }
        }
        throw error("string without an end");
    }

    void skipDocument() {
        skip();
        expectEnd();
    }

    void expectEnd() {
        if (peek() != -1) {
            throw error("more text after the value");
        }
    }

    /** The text of the next value. */
    JsonValue readValue() {
        peek();
        int start = at;
        skip();
        return JsonValue.checked(new String(bytes, start, at - start, StandardCharsets.UTF_8));
    }

    JsonException error(String message) {
        return new JsonException("not the JSON that was expected, at byte " + at + ": " + message);
    }
}
