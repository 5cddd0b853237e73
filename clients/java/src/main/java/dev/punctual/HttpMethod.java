package dev.punctual;

/** The method of a webhook. */
public enum HttpMethod {
    GET, POST, PUT, PATCH, DELETE
}
