//! The tables of a cluster, whose names begin with its name. No other file spells their definition.
//!
//! Names and keys are bytes, so that no collation matters: `CONVERT(key USING utf8mb4)` shows them.
//! Times are milliseconds since 1970. `p` is the partition.

/// Creates the tables, `meta` last: if it exists, all do.
///
/// A task is found by its id, which begins with the time for which it was first scheduled. One that
/// is due at another time has that in `moved_at` too, and a series has `series_ns` and `series_at`;
/// in most rows they are NULL, and their places in the indexes do not change. `late_version` and
/// `late_updated` are those of a postponement since the body was written.
///
/// `difference` has what batches change in the counts, until it is added to `total`: a row for each
/// batch, and one for each deleted letter, with its namespace, task, time and group. A row of
/// `total` has the due counts of an hour, or the groups of letters in place of hour -1. `folds`
/// counts how often differences were added.
///
/// `writes` and `proposals` count changes, so that every change of a row is one for the server,
/// which otherwise neither reports nor commits it.
pub(super) const TABLES: [&str; 10] = [
    "CREATE TABLE IF NOT EXISTS @seat (
    seat INT NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL,
    token VARBINARY(64) NOT NULL,
    broker VARBINARY(1024) NOT NULL,
    `until` BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    batch BIGINT NOT NULL,
    `repair` BIGINT NOT NULL,
    history_bytes BIGINT NOT NULL DEFAULT 0,
    folds BIGINT NOT NULL DEFAULT 0,
    writes BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS @task (
    p SMALLINT NOT NULL,
    id BINARY(16) NOT NULL,
    fire_at BIGINT NOT NULL,
    moved_at BIGINT,
    scheduled TINYINT NOT NULL,
    series_ns VARBINARY(128),
    series_at BIGINT,
    ns VARBINARY(128) NOT NULL,
    `key` VARBINARY(512),
    late_version BIGINT,
    late_updated BIGINT,
    body LONGBLOB NOT NULL,
    PRIMARY KEY (p, id),
    KEY task_moved (p, moved_at, id),
    KEY task_name (p, ns, `key`),
    KEY task_series (p, series_ns, series_at, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS @letter (
    p SMALLINT NOT NULL,
    task BINARY(16) NOT NULL,
    nominal BIGINT NOT NULL,
    ns VARBINARY(128) NOT NULL,
    died_at BIGINT NOT NULL,
    group_name VARBINARY(4096) NOT NULL,
    letter LONGBLOB NOT NULL,
    PRIMARY KEY (p, task, nominal),
    KEY letter_ns (p, ns, task, nominal),
    KEY letter_age (p, died_at, task, nominal)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS @fire (
    p SMALLINT NOT NULL,
    task BINARY(16) NOT NULL,
    nominal BIGINT NOT NULL,
    ended_at BIGINT NOT NULL,
    kind SMALLINT NOT NULL,
    ns VARBINARY(128) NOT NULL,
    `key` VARBINARY(512),
    record LONGBLOB NOT NULL,
    PRIMARY KEY (p, task, nominal),
    KEY fire_end (p, ns, kind, ended_at, task, nominal),
    KEY fire_key (p, ns, `key`, ended_at, task, nominal),
    KEY fire_age (p, ended_at, task, nominal)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS @counts (
    p SMALLINT NOT NULL,
    ns VARBINARY(128) NOT NULL,
    scheduled BIGINT NOT NULL,
    paused BIGINT NOT NULL,
    done BIGINT NOT NULL,
    dead BIGINT NOT NULL,
    cancelled BIGINT NOT NULL,
    dead_letters BIGINT NOT NULL,
    PRIMARY KEY (p, ns)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS @difference (
    p SMALLINT NOT NULL,
    seq BIGINT NOT NULL AUTO_INCREMENT,
    ns VARBINARY(128),
    task BINARY(16),
    nominal BIGINT,
    value LONGBLOB NOT NULL,
    PRIMARY KEY (p, seq),
    KEY difference_seq (seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS @total (
    p SMALLINT NOT NULL,
    ns VARBINARY(128) NOT NULL,
    hour BIGINT NOT NULL,
    value LONGBLOB NOT NULL,
    PRIMARY KEY (p, ns, hour)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS @member (
    broker VARBINARY(1024) NOT NULL PRIMARY KEY,
    sent BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    heartbeat LONGBLOB NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS @assignment (
    one TINYINT NOT NULL PRIMARY KEY,
    proposals BIGINT NOT NULL,
    value LONGBLOB NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS @meta (
    name VARBINARY(64) NOT NULL PRIMARY KEY,
    value VARBINARY(255) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
];
