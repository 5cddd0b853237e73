package dev.punctual;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * A list that is read page by page as it is consumed: an {@link Iterable} and a {@link Stream}. Each iteration starts at
 * the beginning, or at {@link #cursor}.
 */
public abstract sealed class PagedList<T, L extends PagedList<T, L>> implements Iterable<T>
    permits TaskList, FireList, DeadList, NamespaceList {
    private final Map<String, String> query = new LinkedHashMap<>();

    PagedList() {}

    abstract L self();

    abstract Page<T> read(String query);

    final L set(String name, String value) {
        query.put(name, value);
        return self();
    }

    /** How many elements a page has at most, 1 to 1,000. The default is 100. */
    public L limit(int elements) {
        return set("limit", Integer.toString(elements));
    }

    /** Where to begin: the {@code next} of an earlier page. */
    public L cursor(String cursor) {
        return set("cursor", cursor);
    }

    /** Reads one page only. */
    public Page<T> page() {
        return page(query.get("cursor"));
    }

    private Page<T> page(String cursor) {
        Map<String, String> all = new LinkedHashMap<>(query);
        if (cursor != null) {
            all.put("cursor", cursor);
        }
        return read(query(all));
    }

    static String query(Map<String, String> values) {
        String text = values.entrySet().stream().filter(e -> e.getValue() != null)
            .map(e -> e.getKey() + "=" + Call.encode(e.getValue())).collect(Collectors.joining("&"));
        return text.isEmpty() ? "" : "?" + text;
    }

    /** All elements of all pages, read as they are consumed. */
    public Stream<T> stream() {
        return StreamSupport.stream(spliterator(), false);
    }

    @Override
    public Iterator<T> iterator() {
        return new Iterator<>() {
            private Page<T> page = page();
            private Iterator<T> items = page.items().iterator();

            @Override
            public boolean hasNext() {
                while (!items.hasNext() && page.next() != null) {
                    page = page(page.next());
                    items = page.items().iterator();
                }
                return items.hasNext();
            }

            @Override
            public T next() {
                if (!hasNext()) {
                    throw new NoSuchElementException();
                }
                return items.next();
            }
        };
    }

    /** All elements of all pages. */
    public List<T> toList() {
        return stream().toList();
    }
}
