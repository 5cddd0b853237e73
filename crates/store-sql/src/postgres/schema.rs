//! The tables of a cluster, in a schema of its name. No other file spells their definition.
//!
//! Names and keys are `bytea`, so that neither the encoding nor the collation of the database
//! matters: `convert_from(key, 'UTF8')` shows them. Times are milliseconds since 1970. `p` is the
//! partition.

/// Creates the tables in the schema of the search path.
///
/// A task is found by its id, which begins with the time for which it was first scheduled. A task
/// that is due at that time (`not moved`) needs no other index, which is most tasks; one that was
/// postponed, retried or edited, and a series, has an entry in `task_moved` too. `late_version` and
/// `late_updated` are those of a postponement since the body was written.
///
/// `difference` has what batches change in the counts, until it is added to `total`: a row for each
/// batch, which is neither compressed nor stored apart, and one for each deleted letter, with its
/// namespace, task, time and group. A row of `total` has the due counts of an hour, or the groups
/// of letters in place of hour -1. `folds` counts how often differences were added.
///
/// Members and assignment are not durable by contract: their tables are unlogged.
pub(super) const TABLES: &str = "
CREATE TABLE meta (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE seat (
    seat integer PRIMARY KEY,
    epoch bigint NOT NULL,
    token text NOT NULL,
    broker text NOT NULL,
    until bigint NOT NULL,
    expires bigint NOT NULL,
    batch bigint NOT NULL,
    repair bigint NOT NULL,
    history_bytes bigint NOT NULL DEFAULT 0,
    folds bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE TABLE task (
    p smallint NOT NULL,
    id uuid NOT NULL,
    fire_at bigint NOT NULL,
    moved boolean NOT NULL,
    scheduled boolean NOT NULL,
    series boolean NOT NULL,
    ns bytea NOT NULL,
    key bytea,
    late_version bigint,
    late_updated bigint,
    body bytea NOT NULL,
    PRIMARY KEY (p, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX task_moved ON task (p, fire_at, id) WHERE moved;
CREATE INDEX task_name ON task (p, ns, key) WHERE key IS NOT NULL;
CREATE INDEX task_series ON task (p, ns, fire_at, id) WHERE series;
CREATE TABLE letter (
    p smallint NOT NULL,
    task uuid NOT NULL,
    nominal bigint NOT NULL,
    ns bytea NOT NULL,
    died_at bigint NOT NULL,
    group_name bytea NOT NULL,
    letter bytea NOT NULL,
    PRIMARY KEY (p, task, nominal)
);
CREATE INDEX letter_ns ON letter (p, ns, task, nominal);
CREATE INDEX letter_age ON letter (p, died_at);
CREATE TABLE fire (
    p smallint NOT NULL,
    task uuid NOT NULL,
    nominal bigint NOT NULL,
    ended_at bigint NOT NULL,
    kind smallint NOT NULL,
    ns bytea NOT NULL,
    key bytea,
    record bytea NOT NULL,
    PRIMARY KEY (p, task, nominal)
);
CREATE INDEX fire_end ON fire (p, ns, kind, ended_at, task, nominal);
CREATE INDEX fire_key ON fire (p, ns, key, ended_at, task, nominal) WHERE key IS NOT NULL;
CREATE INDEX fire_age ON fire (p, ended_at);
CREATE TABLE counts (
    p smallint NOT NULL,
    ns bytea NOT NULL,
    scheduled bigint NOT NULL,
    paused bigint NOT NULL,
    done bigint NOT NULL,
    dead bigint NOT NULL,
    cancelled bigint NOT NULL,
    dead_letters bigint NOT NULL,
    PRIMARY KEY (p, ns)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE TABLE difference (
    p smallint NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    ns bytea,
    task uuid,
    nominal bigint,
    value bytea NOT NULL,
    PRIMARY KEY (p, seq)
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000);
ALTER TABLE difference ALTER value SET STORAGE EXTERNAL;
CREATE TABLE total (
    p smallint NOT NULL,
    ns bytea NOT NULL,
    hour bigint NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (p, ns, hour)
);
CREATE UNLOGGED TABLE member (
    broker text PRIMARY KEY,
    sent bigint NOT NULL,
    expires bigint NOT NULL,
    heartbeat bytea NOT NULL
) WITH (fillfactor = 20);
CREATE UNLOGGED TABLE assignment (one smallint PRIMARY KEY, value bytea NOT NULL);
";
