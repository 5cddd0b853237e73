package dev.punctual;

import java.time.Instant;
import java.util.List;

/** The fires of all tasks of a namespace that have ended, newest first. */
public final class FireList extends PagedList<FireRecord, FireList> {
    private final Punctual client;

    FireList(Punctual client) {
        this.client = client;
    }

    @Override
    FireList self() {
        return this;
    }

    public FireList end(FireEnd end) {
        return set("end", Json.enumText(end));
    }

    public FireList keyPrefix(String prefix) {
        return set("key_prefix", prefix);
    }

    public FireList label(String name, String value) {
        return set("label", name + ":" + value);
    }

    /** Fires that ended at this time or later. */
    public FireList from(Instant time) {
        return set("from", Times.format(time));
    }

    public FireList to(Instant time) {
        return set("to", Times.format(time));
    }

    @Override
    Page<FireRecord> read(String query) {
        Fires fires = client.send(client.call("GET", "/fires" + query)).as(Fires.class);
        return new Page<>(fires.fires(), fires.next());
    }

    record Fires(List<FireRecord> fires, String next) {}
}
