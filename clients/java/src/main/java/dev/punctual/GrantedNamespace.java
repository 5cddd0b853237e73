package dev.punctual;

import java.util.List;

/** The rights of a token in a namespace. */
public record GrantedNamespace(String name, List<Right> rights) {}
