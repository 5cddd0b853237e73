package dev.punctual;

import java.time.Instant;
import java.util.List;

/** The tasks of a namespace in the order of {@code fireAt}. */
public final class TaskList extends PagedList<Task, TaskList> {
    private final Punctual client;

    TaskList(Punctual client) {
        this.client = client;
    }

    @Override
    TaskList self() {
        return this;
    }

    public TaskList state(State state) {
        return set("state", Json.enumText(state));
    }

    public TaskList kind(Kind kind) {
        return set("kind", Json.enumText(kind));
    }

    public TaskList keyPrefix(String prefix) {
        return set("key_prefix", prefix);
    }

    public TaskList label(String name, String value) {
        return set("label", name + ":" + value);
    }

    public TaskList from(Instant time) {
        return set("from", Times.format(time));
    }

    public TaskList to(Instant time) {
        return set("to", Times.format(time));
    }

    @Override
    Page<Task> read(String query) {
        Tasks tasks = client.send(client.call("GET", "/tasks" + query)).as(Tasks.class);
        return new Page<>(tasks.tasks(), tasks.next());
    }

    record Tasks(List<Task> tasks, String next) {}
}
