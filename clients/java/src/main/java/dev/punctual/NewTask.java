package dev.punctual;

/** A task of a batch, or the one that a touch creates where it is missing. */
public final class NewTask extends TaskFields<NewTask> {
    private NewTask() {}

    /** A task with a key. */
    public static NewTask key(String key) {
        return new NewTask().field("key", key);
    }

    /** A task without a key: the broker gives it an id. */
    public static NewTask withoutKey() {
        return new NewTask();
    }

    @Override
    NewTask self() {
        return this;
    }
}
