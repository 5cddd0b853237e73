package dev.punctual;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;

/**
 * Collects touches and sends them together. Touches of the same key between two flushes are one touch. It flushes when
 * it has enough keys, after a time, and when it is closed. Keys of a flush that failed are kept and sent again.
 */
public final class TouchBuffer implements AutoCloseable {
    /** As many keys as a broker takes in one call. */
    private static final int CALL_MAX = 10_000;

    private final Builder options;
    private final Set<String> keys = new LinkedHashSet<>();
    private final Object sending = new Object();
    private final Thread thread;
    private boolean closed;

    /** Options of a buffer. */
    public static final class Builder {
        private final Punctual client;
        private Duration flushEvery = Duration.ofSeconds(1);
        private int flushAt = 1_000;
        private int keysMax = 100_000;
        private NewTask create;
        private Consumer<PunctualException> onError = e -> {};

        Builder(Punctual client) {
            this.client = client;
        }

        /** How long a touch waits at most. The default is 1 s. */
        public Builder flushEvery(Duration time) {
            this.flushEvery = time;
            return this;
        }

        /** How many keys are sent at once without waiting. The default is 1,000. */
        public Builder flushAt(int keys) {
            this.flushAt = Math.max(1, keys);
            return this;
        }

        /** How many keys are held at most. Above, {@link TouchBuffer#touch} sends them itself. The default is 100,000. */
        public Builder keysMax(int keys) {
            this.keysMax = Math.max(1, keys);
            return this;
        }

        /** Creates a key that is missing as this task. */
        public Builder orCreate(NewTask task) {
            this.create = task;
            return this;
        }

        /** Receives the failures of flushes in the background; their keys are sent again. */
        public Builder onError(Consumer<PunctualException> listener) {
            this.onError = listener;
            return this;
        }

        public TouchBuffer open() {
            return new TouchBuffer(this);
        }
    }

    private TouchBuffer(Builder options) {
        this.options = options;
        thread = new Thread(this::flushRegularly, "punctual-touch");
        thread.setDaemon(true);
        thread.start();
    }

    /** Touches a key soon. If the buffer is full and brokers do not answer, it throws what {@link #flush} throws. */
    public void touch(String key) {
        boolean full;
        synchronized (keys) {
            if (closed) {
                throw new IllegalStateException("the buffer is closed");
            }
            full = keys.size() >= options.keysMax && !keys.contains(key);
        }
        if (full) {
            flush();
        }
        synchronized (keys) {
            keys.add(key);
            if (keys.size() >= options.flushAt) {
                keys.notifyAll();
            }
        }
    }

    /** Sends all keys that were touched before this call. */
    public void flush() {
        synchronized (sending) {
            List<String> batch = take();
            while (!batch.isEmpty()) {
                send(batch);
                batch = take();
            }
        }
    }

    private void send(List<String> batch) {
        try {
            TouchManyCall call = options.client.touch(batch);
            (options.create == null ? call : call.orCreate(options.create)).send();
        } catch (RuntimeException e) {
            synchronized (keys) {
                keys.addAll(batch);
            }
            throw e;
        }
    }

    private List<String> take() {
        synchronized (keys) {
            List<String> batch = new ArrayList<>(Math.min(keys.size(), CALL_MAX));
            Iterator<String> each = keys.iterator();
            while (each.hasNext() && batch.size() < CALL_MAX) {
                batch.add(each.next());
                each.remove();
            }
            return batch;
        }
    }

    private void flushRegularly() {
        while (true) {
            synchronized (keys) {
                try {
                    if (!closed && keys.size() < options.flushAt) {
                        keys.wait(Math.max(1, options.flushEvery.toMillis()));
                    }
                } catch (InterruptedException e) {
                    return;
                }
                if (closed) {
                    return;
                }
            }
            try {
                flush();
            } catch (PunctualException e) {
                options.onError.accept(e);
            }
        }
    }

    /** Sends what is left. A failure is thrown; the keys that were not sent are lost then. */
    @Override
    public void close() {
        synchronized (keys) {
            closed = true;
            keys.notifyAll();
        }
        flush();
    }
}
