package dev.punctual;

import java.time.Instant;
import java.util.List;

/** What the token of the caller grants, and which broker answered. */
public record WhoAmI(
        boolean tokens,
        boolean admin,
        List<GrantedNamespace> namespaces,
        String broker,
        String cluster,
        StoreKind store,
        String version,
        Instant time) {}
