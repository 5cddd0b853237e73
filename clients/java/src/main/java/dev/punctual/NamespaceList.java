package dev.punctual;

import java.util.List;

/** All namespaces by name, with the counts of the store. */
public final class NamespaceList extends PagedList<CountedNamespace, NamespaceList> {
    private final Punctual client;

    NamespaceList(Punctual client) {
        this.client = client;
    }

    @Override
    NamespaceList self() {
        return this;
    }

    @Override
    Page<CountedNamespace> read(String query) {
        Namespaces answer = client.send(client.root("GET", "/v1/namespaces" + query)).as(Namespaces.class);
        return new Page<>(answer.namespaces(), answer.next());
    }

    record Namespaces(List<CountedNamespace> namespaces, String next) {}
}
