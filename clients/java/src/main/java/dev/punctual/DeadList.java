package dev.punctual;

import java.util.List;

/** The dead letters of a namespace. */
public final class DeadList extends PagedList<DeadLetter, DeadList> {
    private final Punctual client;

    DeadList(Punctual client) {
        this.client = client;
    }

    @Override
    DeadList self() {
        return this;
    }

    /** Those of groups with this reason. */
    public DeadList reason(String reason) {
        return set("reason", reason);
    }

    /** Those of groups with this target. */
    public DeadList target(String target) {
        return set("target", target);
    }

    @Override
    Page<DeadLetter> read(String query) {
        Dead dead = client.send(client.call("GET", "/dead" + query)).as(Dead.class);
        return new Page<>(dead.dead(), dead.next());
    }

    record Dead(List<DeadLetter> dead, String next) {}
}
