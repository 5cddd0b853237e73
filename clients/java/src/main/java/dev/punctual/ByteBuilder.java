package dev.punctual;

import java.util.Arrays;

/** Bytes that grow; without the locks of {@code ByteArrayOutputStream}. */
final class ByteBuilder {
    private byte[] bytes = new byte[256];
    private int size;

    void write(int b) {
        if (size == bytes.length) {
            grow(1);
        }
        bytes[size++] = (byte) b;
    }

    void writeBytes(byte[] more) {
        if (size + more.length > bytes.length) {
            grow(more.length);
        }
        System.arraycopy(more, 0, bytes, size, more.length);
        size += more.length;
    }

    private void grow(int more) {
        bytes = Arrays.copyOf(bytes, Math.max(Math.addExact(size, more), size + (size >> 1)));
    }

    int size() {
        return size;
    }

    void truncate(int length) {
        size = length;
    }

    byte[] toByteArray() {
        return Arrays.copyOf(bytes, size);
    }
}
