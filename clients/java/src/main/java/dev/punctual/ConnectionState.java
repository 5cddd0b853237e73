package dev.punctual;

/** Whether a connection can be used. */
public enum ConnectionState {
    READY, AWAY
}
