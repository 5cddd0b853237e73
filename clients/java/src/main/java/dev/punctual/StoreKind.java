package dev.punctual;

/** Where a broker keeps tasks. */
public enum StoreKind {
    MEMORY, EMBEDDED, REDIS, POSTGRES, MYSQL
}
