package dev.punctual;

/** What became of a task that was to be cancelled. */
public sealed interface CancelResult permits Cancelled, Firing, AlreadyFired, NotFound {}
