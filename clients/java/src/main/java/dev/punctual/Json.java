package dev.punctual;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;

/**
 * JSON of records, maps, lists, texts, numbers, booleans, enums, {@link Instant} and {@link Duration}.
 *
 * <p>A record component {@code firedAt} is {@code fired_at} in JSON, unless {@link JsonName} gives another name. When a
 * record is read, a name that it does not have is skipped and one that is missing leaves {@code null}, 0 or
 * {@code false}, so a newer broker can be read by an older client. When a record is written, components that are
 * {@code null} are left out. Text may be nested up to 128 levels.
 */
public final class Json {
    private Json() {}

    /** Reads JSON text as {@code type}; {@code Object.class} gives maps, lists, texts, numbers and booleans. */
    public static <T> T read(String text, Class<T> type) {
        return read(text.getBytes(StandardCharsets.UTF_8), type);
    }

    /** Reads JSON in UTF-8 as {@code type}. */
    public static <T> T read(byte[] bytes, Class<T> type) {
        JsonReader reader = new JsonReader(bytes);
        T value = readAs(reader, type);
        reader.expectEnd();
        return value;
    }

    /** The JSON text of a value. */
    public static String write(Object value) {
        return new String(bytes(value), StandardCharsets.UTF_8);
    }

    /** The JSON of a value in UTF-8. */
    public static byte[] bytes(Object value) {
        ByteBuilder out = new ByteBuilder();
        write(value, out);
        return out.toByteArray();
    }

    // Reading

    @SuppressWarnings("unchecked")
    static <T> T readAs(JsonReader reader, Class<T> type) {
        return (T) readType(reader, type);
    }

    private static Object readType(JsonReader reader, Type type) {
        if (type instanceof ParameterizedType parameterized) {
            return readGeneric(reader, parameterized);
        }
        return type instanceof Class<?> raw ? readClass(reader, raw) : reader.readAny();
    }

    private static Object readGeneric(JsonReader reader, ParameterizedType type) {
        Class<?> raw = (Class<?>) type.getRawType();
        Type[] arguments = type.getActualTypeArguments();
        if (raw == Optional.class) {
            return reader.takeNull() ? Optional.empty() : Optional.of(readType(reader, arguments[0]));
        }
        if (reader.takeNull()) {
            return null;
        }
        if (Collection.class.isAssignableFrom(raw)) {
            return readList(reader, arguments[0]);
        }
        if (Map.class.isAssignableFrom(raw)) {
            return readMap(reader, arguments[1]);
        }
        return readClass(reader, raw);
    }

    private static List<Object> readList(JsonReader reader, Type element) {
        List<Object> list = new ArrayList<>();
        reader.enter('[');
        if (reader.leaveIfEmpty(']')) {
            return list;
        }
        do {
            list.add(readType(reader, element));
        } while (reader.more(']'));
        return list;
    }

    private static Map<String, Object> readMap(JsonReader reader, Type value) {
        Map<String, Object> map = new LinkedHashMap<>();
        reader.enter('{');
        if (reader.leaveIfEmpty('}')) {
            return map;
        }
        do {
            String name = reader.readName();
            map.put(name, readType(reader, value));
        } while (reader.more('}'));
        return map;
    }

    private static Object readClass(JsonReader reader, Class<?> type) {
        if (type == JsonValue.class) {
            return reader.readValue();
        }
        if (reader.takeNull()) {
            return type.isPrimitive() ? zero(type) : null;
        }
        if (type == String.class) {
            return readText(reader);
        }
        if (type == boolean.class || type == Boolean.class) {
            return reader.readBoolean();
        }
        if (type.isPrimitive() || Number.class.isAssignableFrom(type)) {
            return number(reader.readNumber(), type, reader);
        }
        if (type.isRecord()) {
            return RecordShape.of(type).read(reader);
        }
        if (type.isEnum()) {
            return enumOf(type, reader.readString());
        }
        if (type == Instant.class) {
            return reader.peek() == '"' ? Times.parseInstant(reader.readString())
                : Instant.ofEpochMilli(reader.readNumber().longValue());
        }
        if (type == Duration.class) {
            return Times.parseDuration(reader.readString());
        }
        if (type == ZoneId.class) {
            return ZoneId.of(reader.readString());
        }
        return readAny(reader, type);
    }

    private static Object readAny(JsonReader reader, Class<?> type) {
        Object value = reader.readAny();
        if (!type.isInstance(value)) {
            throw reader.error("cannot read a " + type.getName() + "; use a record, Map, List or Object");
        }
        return value;
    }

    /** A text; a number or a boolean is read as its text, because some fields are either (the value of an alarm). */
    private static String readText(JsonReader reader) {
        if (reader.peek() == '"') {
            return reader.readString();
        }
        Object value = reader.readAny();
        if (value instanceof Number || value instanceof Boolean) {
            return value.toString();
        }
        throw reader.error("expected a text");
    }

    private static Object number(Number value, Class<?> type, JsonReader reader) {
        if (value instanceof Long && (type == long.class || type == Long.class)) {
            return value;
        }
        try {
            if (type == long.class || type == Long.class) {
                return new BigDecimal(value.toString()).longValueExact();
            }
            if (type == int.class || type == Integer.class) {
                return new BigDecimal(value.toString()).intValueExact();
            }
        } catch (ArithmeticException e) {
            throw reader.error(value + " does not fit " + type.getSimpleName());
        }
        if (type == double.class || type == Double.class) {
            return value.doubleValue();
        }
        if (type == float.class || type == Float.class) {
            return value.floatValue();
        }
        if (type == BigDecimal.class) {
            return new BigDecimal(value.toString());
        }
        if (type == BigInteger.class) {
            return new BigDecimal(value.toString()).toBigIntegerExact();
        }
        if (type == Number.class) {
            return value;
        }
        throw reader.error("cannot read a " + type.getName());
    }

    static Object zero(Class<?> type) {
        return Array.get(Array.newInstance(type, 1), 0);
    }

    /** An unknown name is null in types of this package, which a newer broker may answer; otherwise it is an error. */
    private static Object enumOf(Class<?> type, String text) {
        for (Object constant : type.getEnumConstants()) {
            if (((Enum<?>) constant).name().equalsIgnoreCase(text)) {
                return constant;
            }
        }
        if (type.getPackage() == Json.class.getPackage()) {
            return null;
        }
        throw new JsonException("\"" + text + "\" is none of " + Arrays.toString(type.getEnumConstants()));
    }

    // Writing

    static void write(Object value, ByteBuilder out) {
        write(value, out, 0);
    }

    private static void write(Object value, ByteBuilder out, int depth) {
        if (depth > JsonReader.DEPTH_MAX) {
            throw new JsonException("nested deeper than " + JsonReader.DEPTH_MAX + " levels");
        }
        if (value == null) {
            ascii("null", out);
        } else if (value instanceof String text) {
            string(text, out);
        } else if (value instanceof Number number) {
            ascii(numberText(number), out);
        } else if (value instanceof Boolean) {
            ascii(value.toString(), out);
        } else if (value instanceof JsonValue json) {
            out.writeBytes(json.toString().getBytes(StandardCharsets.UTF_8));
        } else if (value instanceof Instant instant) {
            string(Times.format(instant), out);
        } else if (value instanceof Duration duration) {
            string(Times.format(duration), out);
        } else if (value instanceof Enum<?> constant) {
            string(enumText(constant), out);
        } else if (value instanceof Map<?, ?> map) {
            map(map, out, depth);
        } else if (value instanceof Iterable<?> list) {
            list(list, out, depth);
        } else if (value instanceof Record) {
            RecordShape.of(value.getClass()).write(value, out, depth);
        } else {
            other(value, out, depth);
        }
    }

    private static void other(Object value, ByteBuilder out, int depth) {
        if (value instanceof Optional<?> optional) {
            write(optional.orElse(null), out, depth);
        } else if (value instanceof Object[] array) {
            list(Arrays.asList(array), out, depth);
        } else if (value instanceof ZoneId || value instanceof java.util.UUID || value instanceof Character) {
            string(value.toString(), out);
        } else if (value instanceof TaskFields<?> task) {
            map(task.fields(), out, depth);
        } else {
            throw new JsonException("cannot write a " + value.getClass().getName() + " as JSON; use a record or a Map");
        }
    }

    /** Names of states and outcomes are in lower case; methods of HTTP stay in upper case. */
    static String enumText(Enum<?> constant) {
        return constant instanceof HttpMethod ? constant.name() : constant.name().toLowerCase(Locale.ROOT);
    }

    private static String numberText(Number number) {
        if (number instanceof Double || number instanceof Float) {
            double value = number.doubleValue();
            if (Double.isNaN(value) || Double.isInfinite(value)) {
                throw new JsonException(value + " is not a number in JSON");
            }
        }
        return number.toString();
    }

    private static void map(Map<?, ?> map, ByteBuilder out, int depth) {
        out.write('{');
        boolean first = true;
        for (Map.Entry<?, ?> entry : map.entrySet()) {
            if (!first) {
                out.write(',');
            }
            first = false;
            string(String.valueOf(entry.getKey()), out);
            out.write(':');
            write(entry.getValue(), out, depth + 1);
        }
        out.write('}');
    }

    private static void list(Iterable<?> list, ByteBuilder out, int depth) {
        out.write('[');
        boolean first = true;
        for (Object element : list) {
            if (!first) {
                out.write(',');
            }
            first = false;
            write(element, out, depth + 1);
        }
        out.write(']');
    }

    private static void string(String text, ByteBuilder out) {
        out.write('"');
        int length = text.length();
        for (int i = 0; i < length; i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.write('\\');
                out.write(c);
            } else if (c < ' ') {
                ascii(String.format("\\u%04x", (int) c), out);
            } else if (c < 0x80) {
                out.write(c);
            } else if (Character.isHighSurrogate(c) && i + 1 < length && Character.isLowSurrogate(text.charAt(i + 1))) {
                out.writeBytes(text.substring(i, i + 2).getBytes(StandardCharsets.UTF_8));
                i++;
            } else if (Character.isSurrogate(c)) {
                throw new JsonException("text with half a surrogate pair at index " + i);
            } else {
                out.writeBytes(String.valueOf(c).getBytes(StandardCharsets.UTF_8));
            }
        }
        out.write('"');
    }

    private static void ascii(String text, ByteBuilder out) {
        out.writeBytes(text.getBytes(StandardCharsets.US_ASCII));
    }

    /** The components of a record class with their names in JSON; looked up once per class. */
    static final class RecordShape {
        private static final Map<Class<?>, RecordShape> SHAPES = new ConcurrentHashMap<>();

        private final Class<?> type;
        private final MethodHandle constructor;
        private final String[] names;
        private final Type[] types;
        private final Object[] missing;
        private final MethodHandle[] accessors;
        private final Map<String, Integer> index = new HashMap<>();

        static RecordShape of(Class<?> type) {
            return SHAPES.computeIfAbsent(type, RecordShape::new);
        }

        private RecordShape(Class<?> type) {
            this.type = type;
            RecordComponent[] components = type.getRecordComponents();
            names = new String[components.length];
            types = new Type[components.length];
            missing = new Object[components.length];
            accessors = new MethodHandle[components.length];
            Class<?>[] parameters = new Class<?>[components.length];
            try {
                for (int i = 0; i < components.length; i++) {
                    names[i] = nameOf(components[i]);
                    types[i] = components[i].getGenericType();
                    parameters[i] = components[i].getType();
                    missing[i] = missing(parameters[i]);
                    Method accessor = components[i].getAccessor();
                    accessor.setAccessible(true);
                    accessors[i] = MethodHandles.lookup().unreflect(accessor)
                        .asType(java.lang.invoke.MethodType.methodType(Object.class, Object.class));
                    index.put(names[i], i);
                }
                Constructor<?> canonical = type.getDeclaredConstructor(parameters);
                canonical.setAccessible(true);
                constructor = MethodHandles.lookup().unreflectConstructor(canonical)
                    .asSpreader(Object[].class, parameters.length)
                    .asType(java.lang.invoke.MethodType.methodType(Object.class, Object[].class));
            } catch (ReflectiveOperationException e) {
                throw new JsonException("cannot use the record " + type.getName(), e);
            }
        }

        private static Object missing(Class<?> type) {
            if (type == Optional.class) {
                return Optional.empty();
            }
            return type.isPrimitive() ? zero(type) : null;
        }

        private static String nameOf(RecordComponent component) {
            JsonName name = component.getAnnotation(JsonName.class);
            return name != null ? name.value() : snake(component.getName());
        }

        List<String> names() {
            return List.of(names);
        }

        Object read(JsonReader reader) {
            Object[] values = missing.clone();
            reader.enter('{');
            if (!reader.leaveIfEmpty('}')) {
                do {
                    Integer i = index.get(reader.readName());
                    if (i == null) {
                        reader.skip();
                    } else {
                        values[i] = readType(reader, types[i]);
                    }
                } while (reader.more('}'));
            }
            return construct(values);
        }

        private Object construct(Object[] values) {
            try {
                return constructor.invokeExact(values);
            } catch (RuntimeException | Error e) {
                throw e;
            } catch (Throwable e) {
                throw new JsonException("cannot create a " + type.getName(), e);
            }
        }

        void write(Object record, ByteBuilder out, int depth) {
            out.write('{');
            boolean first = true;
            for (int i = 0; i < names.length; i++) {
                Object value = get(record, i);
                if (value == null || value.equals(Optional.empty())) {
                    continue;
                }
                if (!first) {
                    out.write(',');
                }
                first = false;
                string(names[i], out);
                out.write(':');
                Json.write(value, out, depth + 1);
            }
            out.write('}');
        }

        private Object get(Object record, int i) {
            try {
                return accessors[i].invokeExact(record);
            } catch (RuntimeException | Error e) {
                throw e;
            } catch (Throwable e) {
                throw new JsonException("cannot read " + names[i] + " of " + type.getName(), e);
            }
        }
    }

    /** {@code firedAt} as {@code fired_at}. */
    static String snake(String camel) {
        StringBuilder snake = new StringBuilder(camel.length() + 4);
        for (int i = 0; i < camel.length(); i++) {
            char c = camel.charAt(i);
            if (Character.isUpperCase(c)) {
                snake.append('_').append(Character.toLowerCase(c));
            } else {
                snake.append(c);
            }
        }
        return snake.toString();
    }
}
