//! The statements. No other file has SQL, apart from `schema` and `server`.

use crate::database::ReadTexts;

/// The statements that read.
pub(super) const READS: ReadTexts = ReadTexts {
    load: "(SELECT id, fire_at, scheduled, late_version, late_updated, body FROM task
        WHERE p = $1 AND id > $2 AND id < $3 AND NOT moved AND scheduled ORDER BY id LIMIT $7)
    UNION ALL
    (SELECT id, fire_at, scheduled, late_version, late_updated, body FROM task
        WHERE p = $1 AND moved AND scheduled AND (fire_at, id) > ($4, $5) AND fire_at < $6
        ORDER BY fire_at, id LIMIT $7)",
    get: "SELECT id, fire_at, scheduled, late_version, late_updated, body FROM task
    WHERE p = $1 AND id = ANY($2)",
    // LATERAL with LIMIT: one look into the index for each key, also while the table has no
    // statistics. A join of tables of unknown size reads all names of the namespace.
    find: "SELECT one.*, named.key FROM unnest($3::bytea[]) AS named (key)
    CROSS JOIN LATERAL (SELECT id, fire_at, scheduled, late_version, late_updated, body FROM task
        WHERE p = $1 AND ns = $2 AND key = named.key LIMIT 1) AS one",
    letters: "SELECT one.* FROM unnest($2::uuid[], $3::bigint[]) AS wanted (task, nominal)
    CROSS JOIN LATERAL (SELECT task, nominal, letter FROM letter
        WHERE p = $1 AND task = wanted.task AND nominal = wanted.nominal LIMIT 1) AS one",
    history: "SELECT task, nominal, record FROM fire WHERE p = $1 AND task = $2
    ORDER BY nominal DESC LIMIT $3",
    last_fires: "SELECT last.task, last.nominal, last.record, named.key
    FROM unnest($3::bytea[]) AS named (key)
    CROSS JOIN LATERAL (SELECT task, nominal, record FROM fire
        WHERE p = $1 AND ns = $2 AND key = named.key
        ORDER BY ended_at DESC, task DESC, nominal DESC LIMIT 1) AS last",
    counts: "SELECT scheduled, paused, done, dead, cancelled, dead_letters FROM counts
    WHERE p = $1 AND ns = $2",
    list: "(SELECT id, fire_at, scheduled, late_version, late_updated,
            CASE WHEN ns = $7 THEN body END AS body FROM task
        WHERE p = $1 AND id > $2 AND id < $3 AND NOT moved ORDER BY id LIMIT $8)
    UNION ALL
    (SELECT id, fire_at, scheduled, late_version, late_updated,
            CASE WHEN ns = $7 THEN body END AS body FROM task
        WHERE p = $1 AND moved AND (fire_at, id) > ($4, $5) AND fire_at < $6
        ORDER BY fire_at, id LIMIT $8)",
    series: "SELECT id, fire_at, scheduled, late_version, late_updated, body FROM task
    WHERE p = $1 AND ns = $2 AND series AND (fire_at, id) > ($3, $4) AND fire_at < $5
    ORDER BY fire_at, id LIMIT $6",
    prefix: "SELECT id, fire_at, scheduled, late_version, late_updated, body FROM task
    WHERE p = $1 AND ns = $2 AND key >= $3 AND key < $4 LIMIT $5",
    fires: "SELECT one.task, one.nominal, one.record, one.ended_at
    FROM unnest($3::smallint[]) AS kinds (kind)
    CROSS JOIN LATERAL (SELECT task, nominal, record, ended_at FROM fire
        WHERE p = $1 AND ns = $2 AND fire.kind = kinds.kind
            AND (ended_at, task, nominal) < ($4, $5, $6) AND ended_at >= $7
        ORDER BY ended_at DESC, task DESC, nominal DESC LIMIT $8) AS one",
    prefix_fires: "SELECT task, nominal, record, ended_at FROM fire
    WHERE p = $1 AND ns = $2 AND key >= $3 AND key < $4 LIMIT $5",
    dead: "SELECT task, nominal, letter FROM letter
    WHERE p = $1 AND ns = $2 AND (task, nominal) > ($3, $4) ORDER BY task, nominal LIMIT $5",
    namespaces: "SELECT ns, scheduled, paused, done, dead, cancelled, dead_letters
    FROM counts WHERE p = $1 AND ns > $2
        AND (scheduled, paused, done, dead, cancelled, dead_letters) <> (0, 0, 0, 0, 0, 0)
    ORDER BY ns LIMIT $3",
    seat: "SELECT epoch, token, batch, repair FROM seat WHERE seat = $1",
    holder: "SELECT epoch, broker, until FROM seat WHERE seat = $1",
    members: "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now,
        broker, sent, expires, heartbeat FROM member",
    leader: "SELECT epoch, broker, until, expires FROM seat WHERE seat = -1",
    assignment: "SELECT value FROM assignment",
    meta: "SELECT value FROM meta WHERE name = $1",
    history_size: "SELECT sum(history_bytes)::bigint,
    sum(history_bytes) FILTER (WHERE seat = $1)::bigint FROM seat",
    count_rows: "SELECT 0::bigint AS part, folds AS number, NULL::bytea AS ns, NULL::uuid AS task,
        NULL::bigint AS nominal, NULL::bytea AS value FROM seat WHERE seat = $1
    UNION ALL
    (SELECT 1, seq, ns, task, nominal, value FROM difference
        WHERE p = $2 AND seq > $3 ORDER BY seq LIMIT $4)
    UNION ALL
    (SELECT 2, hour, NULL, NULL, NULL, value FROM total
        WHERE p = $2 AND ns = $5 AND hour >= $6 AND hour <= $7 ORDER BY hour LIMIT $8)",
    totals: "SELECT total.ns, total.hour, total.value FROM total
    JOIN unnest($2::bytea[], $3::bigint[]) AS wanted (ns, hour)
    ON total.p = $1 AND total.ns = wanted.ns AND total.hour = wanted.hour",
};

/// The fence divides by zero if it moves no row.
pub(super) const FENCE: &str = "WITH moved AS (
    UPDATE seat SET batch = $4::bigint, repair = $5::bigint,
        history_bytes = history_bytes + $6::bigint
    WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3)
        AND batch = $4::bigint - 1 AND repair <= $5::bigint
    RETURNING 1)
    SELECT 1 / count(*) FROM moved";
/// Commits once more, so that the answer waits for replicas if the batch has to.
pub(super) const REPEAT: &str = "UPDATE seat SET repair = $5
    WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3) AND batch = $4
        AND repair <= $5 RETURNING 1";
pub(super) const END_TASKS: &str = "DELETE FROM task WHERE p = $1 AND id = ANY($2)";
pub(super) const NEW_TASKS: &str = "INSERT INTO task
    (p, id, fire_at, moved, scheduled, series, ns, key, body)
    SELECT $1, * FROM unnest($2::uuid[], $3::bigint[], $4::boolean[], $5::boolean[],
        $6::boolean[], $7::bytea[], $8::bytea[], $9::bytea[])";
pub(super) const FILE_TASKS: &str = "INSERT INTO task
    (p, id, fire_at, moved, scheduled, series, ns, key, body)
    SELECT $1, * FROM unnest($2::uuid[], $3::bigint[], $4::boolean[], $5::boolean[],
        $6::boolean[], $7::bytea[], $8::bytea[], $9::bytea[])
    ON CONFLICT (p, id) DO UPDATE SET fire_at = excluded.fire_at, moved = excluded.moved,
        scheduled = excluded.scheduled, series = excluded.series, ns = excluded.ns,
        key = excluded.key, body = excluded.body, late_version = NULL, late_updated = NULL";
pub(super) const POSTPONE_TASKS: &str = "UPDATE task SET fire_at = late.fire_at, moved = true,
        late_version = late.version, late_updated = late.updated
    FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[])
        AS late (id, fire_at, version, updated)
    WHERE task.p = $1 AND task.id = ANY($2) AND task.id = late.id";
pub(super) const KEEP_LETTERS: &str = "INSERT INTO letter
    (p, task, nominal, ns, died_at, group_name, letter)
    SELECT $1, * FROM unnest($2::uuid[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bytea[],
        $7::bytea[])
    ON CONFLICT (p, task, nominal) DO UPDATE SET ns = excluded.ns, died_at = excluded.died_at,
        group_name = excluded.group_name, letter = excluded.letter";
pub(super) const REMOVE_LETTERS: &str = "WITH deleted AS (
        DELETE FROM letter USING unnest($2::uuid[], $3::bigint[]) AS gone (task, nominal)
        WHERE letter.p = $1 AND letter.task = ANY($2) AND letter.task = gone.task
            AND letter.nominal = gone.nominal
        RETURNING letter.ns, letter.task, letter.nominal, letter.group_name)
    INSERT INTO difference (p, ns, task, nominal, value)
    SELECT $1, ns, task, nominal, group_name FROM deleted";
pub(super) const ADD_DIFFERENCE: &str = "INSERT INTO difference (p, value) VALUES ($1, $2)";
/// Divides by zero if it moves no row, as [`FENCE`] does.
pub(super) const FOLD_FENCE: &str = "WITH moved AS (
    UPDATE seat SET folds = folds + 1
    WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3) AND folds = $4::bigint
    RETURNING 1)
    SELECT 1 / count(*) FROM moved";
pub(super) const REMOVE_DIFFERENCES: &str =
    "DELETE FROM difference WHERE p = $1 AND seq = ANY($2::bigint[])";
pub(super) const REMOVE_TOTALS: &str = "DELETE FROM total USING unnest($2::bytea[], $3::bigint[])
        AS gone (ns, hour)
    WHERE total.p = $1 AND total.ns = gone.ns AND total.hour = gone.hour";
pub(super) const KEEP_TOTALS: &str = "INSERT INTO total (p, ns, hour, value)
    SELECT $1, * FROM unnest($2::bytea[], $3::bigint[], $4::bytea[])";
pub(super) const KEEP_RECORDS: &str = "INSERT INTO fire
    (p, task, nominal, ended_at, kind, ns, key, record)
    SELECT $1, * FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::smallint[], $6::bytea[],
        $7::bytea[], $8::bytea[])
    ON CONFLICT (p, task, nominal) DO UPDATE SET ended_at = excluded.ended_at,
        kind = excluded.kind, ns = excluded.ns, key = excluded.key, record = excluded.record";
pub(super) const MOVE_COUNTS: &str = "INSERT INTO counts AS c
    (p, ns, scheduled, paused, done, dead, cancelled, dead_letters)
    SELECT $1, * FROM unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
        $7::bigint[], $8::bigint[])
    ON CONFLICT (p, ns) DO UPDATE SET scheduled = c.scheduled + excluded.scheduled,
        paused = c.paused + excluded.paused, done = c.done + excluded.done,
        dead = c.dead + excluded.dead, cancelled = c.cancelled + excluded.cancelled,
        dead_letters = c.dead_letters + excluded.dead_letters";
pub(super) const ACQUIRE: &str = "INSERT INTO seat AS s
        (seat, epoch, token, broker, until, expires, batch, repair)
    VALUES ($1, $2, $3, $4, $5, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $6, 0, 0)
    ON CONFLICT (seat) DO UPDATE SET epoch = greatest(s.epoch + 1, excluded.epoch),
        token = excluded.token, broker = excluded.broker, until = excluded.until,
        expires = excluded.expires, batch = 0, repair = 0
    WHERE s.broker = excluded.broker
        OR s.expires <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    RETURNING epoch";
pub(super) const RENEW: &str = "UPDATE seat SET until = $4,
        expires = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $5
    WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3) RETURNING 1";
pub(super) const RELEASE: &str = "UPDATE seat SET until = 0, expires = 0
    WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3)";
/// Deletes a member whose heartbeat has expired.
pub(super) const HEARTBEAT: &str = "WITH clock AS (
        SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now),
    gone AS (DELETE FROM member USING clock WHERE expires <= now AND broker <> $1)
    INSERT INTO member (broker, sent, expires, heartbeat)
    SELECT $1, now, now + $2, $3 FROM clock
    ON CONFLICT (broker) DO UPDATE SET sent = excluded.sent, expires = excluded.expires,
        heartbeat = excluded.heartbeat";
pub(super) const LEAVE: &str = "DELETE FROM member WHERE broker = $1";
pub(super) const PROPOSE: &str = "INSERT INTO assignment (one, value)
    SELECT 0, $3 FROM seat WHERE seat = -1 AND epoch = $1 AND ($2::text = '' OR token = $2)
    ON CONFLICT (one) DO UPDATE SET value = excluded.value RETURNING 1";
pub(super) const PROPOSE_META: &str =
    "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
pub(super) const SWEEP_FIRES: &str = "WITH own AS (
        SELECT seat FROM seat WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3)
        FOR UPDATE),
    oldest AS (
        SELECT task, nominal, ended_at, octet_length(record) AS bytes FROM fire
        WHERE p = $4 AND ended_at <= $7 AND EXISTS (SELECT FROM own)
        ORDER BY ended_at LIMIT $8),
    past AS (
        SELECT task, nominal FROM (
            SELECT *, sum(bytes) OVER (ORDER BY ended_at, task, nominal) - bytes AS before
            FROM oldest) AS aged
        WHERE ended_at <= $5 OR before < $6::bigint),
    gone AS (
        DELETE FROM fire USING past
        WHERE fire.p = $4 AND fire.task = past.task AND fire.nominal = past.nominal
        RETURNING octet_length(fire.record) AS bytes),
    sized AS (
        UPDATE seat SET history_bytes =
            greatest(0, history_bytes - (SELECT coalesce(sum(bytes), 0) FROM gone)::bigint)
        FROM own WHERE seat.seat = own.seat AND EXISTS (SELECT FROM gone) RETURNING 1)
    SELECT (SELECT count(*) FROM own), (SELECT count(*) FROM gone),
        (SELECT coalesce(sum(bytes), 0)::bigint FROM gone)";
pub(super) const SWEEP_LETTERS: &str = "WITH own AS (
        SELECT seat FROM seat WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3)
        FOR UPDATE),
    past AS (
        SELECT task, nominal FROM letter
        WHERE p = $4 AND died_at <= $5 AND EXISTS (SELECT FROM own)
        ORDER BY died_at LIMIT $6),
    gone AS (
        DELETE FROM letter USING past
        WHERE letter.p = $4 AND letter.task = past.task AND letter.nominal = past.nominal
        RETURNING letter.ns, letter.task, letter.nominal, letter.group_name),
    differ AS (
        INSERT INTO difference (p, ns, task, nominal, value)
        SELECT $4, ns, task, nominal, group_name FROM gone RETURNING 1),
    fewer AS (SELECT ns, count(*) AS letters FROM gone GROUP BY ns),
    counted AS (
        UPDATE counts SET dead_letters = dead_letters - fewer.letters FROM fewer
        WHERE counts.p = $4 AND counts.ns = fewer.ns RETURNING 1)
    SELECT (SELECT count(*) FROM own), (SELECT count(*) FROM gone)";
