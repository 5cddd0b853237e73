//! The statements, as templates (see `template`). No other file has SQL, apart from `schema`,
//! `server` and `batch`.
//!
//! Indexes are named: on a table that was just filled the planner would sort or scan. A range that
//! begins behind a position is two, because a comparison of rows uses no index.

use crate::database::ReadTexts;

/// The statements that read.
pub(super) const READS: ReadTexts = ReadTexts {
    load: "(SELECT id, fire_at, scheduled, late_version, late_updated, body
        FROM @task FORCE INDEX (PRIMARY)
        WHERE p = $1 AND id > $2 AND id < $3 AND moved_at IS NULL AND scheduled = 1
        ORDER BY id LIMIT $7)
    UNION ALL
    (SELECT id, fire_at, scheduled, late_version, late_updated, body
        FROM @task FORCE INDEX (task_moved)
        WHERE p = $1 AND moved_at = $4 AND moved_at < $6 AND id > $5 AND scheduled = 1
        ORDER BY id LIMIT $7)
    UNION ALL
    (SELECT id, fire_at, scheduled, late_version, late_updated, body
        FROM @task FORCE INDEX (task_moved)
        WHERE p = $1 AND moved_at > $4 AND moved_at < $6 AND scheduled = 1
        ORDER BY moved_at, id LIMIT $7)",
    get: "SELECT id, fire_at, scheduled, late_version, late_updated, body
    FROM @task FORCE INDEX (PRIMARY) WHERE p = $1 AND id IN ($2)",
    find: "SELECT id, fire_at, scheduled, late_version, late_updated, body, `key`
    FROM @task FORCE INDEX (task_name) WHERE p = $1 AND ns = $2 AND `key` IN ($3)",
    letters: "SELECT task, nominal, letter FROM @letter FORCE INDEX (PRIMARY)
    WHERE p = $1 AND (task, nominal) IN ({2 3})",
    history: "SELECT task, nominal, record FROM @fire FORCE INDEX (PRIMARY)
    WHERE p = $1 AND task = $2 ORDER BY nominal DESC LIMIT $3",
    last_fires: "EACH 3 (SELECT task, nominal, record, `key` FROM @fire FORCE INDEX (fire_key)
        WHERE p = $1 AND ns = $2 AND `key` = $3
        ORDER BY ended_at DESC, task DESC, nominal DESC LIMIT 1)",
    counts: "SELECT scheduled, paused, done, dead, cancelled, dead_letters FROM @counts
    WHERE p = $1 AND ns = $2",
    list: "(SELECT id, fire_at, scheduled, late_version, late_updated,
            CASE WHEN ns = $7 THEN body END AS body FROM @task FORCE INDEX (PRIMARY)
        WHERE p = $1 AND id > $2 AND id < $3 AND moved_at IS NULL ORDER BY id LIMIT $8)
    UNION ALL
    (SELECT id, fire_at, scheduled, late_version, late_updated,
            CASE WHEN ns = $7 THEN body END AS body FROM @task FORCE INDEX (task_moved)
        WHERE p = $1 AND moved_at = $4 AND moved_at < $6 AND id > $5 ORDER BY id LIMIT $8)
    UNION ALL
    (SELECT id, fire_at, scheduled, late_version, late_updated,
            CASE WHEN ns = $7 THEN body END AS body FROM @task FORCE INDEX (task_moved)
        WHERE p = $1 AND moved_at > $4 AND moved_at < $6 ORDER BY moved_at, id LIMIT $8)",
    series: "(SELECT id, fire_at, scheduled, late_version, late_updated, body
        FROM @task FORCE INDEX (task_series)
        WHERE p = $1 AND series_ns = $2 AND series_at = $3 AND series_at < $5 AND id > $4
        ORDER BY id LIMIT $6)
    UNION ALL
    (SELECT id, fire_at, scheduled, late_version, late_updated, body
        FROM @task FORCE INDEX (task_series)
        WHERE p = $1 AND series_ns = $2 AND series_at > $3 AND series_at < $5
        ORDER BY series_at, id LIMIT $6)",
    prefix: "SELECT id, fire_at, scheduled, late_version, late_updated, body
    FROM @task FORCE INDEX (task_name)
    WHERE p = $1 AND ns = $2 AND `key` >= $3 AND `key` < $4 LIMIT $5",
    fires: "EACH 3 (SELECT task, nominal, record, ended_at FROM @fire FORCE INDEX (fire_end)
        WHERE p = $1 AND ns = $2 AND kind = $3 AND ended_at <= $4 AND ended_at >= $7
            AND (ended_at < $4 OR task < $5 OR (task = $5 AND nominal < $6))
        ORDER BY ended_at DESC, task DESC, nominal DESC LIMIT $8)",
    prefix_fires: "SELECT task, nominal, record, ended_at FROM @fire FORCE INDEX (fire_key)
    WHERE p = $1 AND ns = $2 AND `key` >= $3 AND `key` < $4 LIMIT $5",
    dead: "SELECT task, nominal, letter FROM @letter FORCE INDEX (letter_ns)
    WHERE p = $1 AND ns = $2 AND task >= $3 AND (task > $3 OR nominal > $4)
    ORDER BY task, nominal LIMIT $5",
    namespaces: "SELECT ns, scheduled, paused, done, dead, cancelled, dead_letters
    FROM @counts FORCE INDEX (PRIMARY) WHERE p = $1 AND ns > $2
        AND (scheduled, paused, done, dead, cancelled, dead_letters) <> (0, 0, 0, 0, 0, 0)
    ORDER BY ns LIMIT $3",
    seat: "SELECT epoch, token, batch, `repair` FROM @seat WHERE seat = $1",
    holder: "SELECT epoch, broker, `until` FROM @seat WHERE seat = $1",
    members: "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS now_ms,
        broker, sent, expires, heartbeat FROM @member",
    leader: "SELECT epoch, broker, `until`, expires FROM @seat WHERE seat = -1",
    assignment: "SELECT value FROM @assignment",
    meta: "SELECT value FROM @meta WHERE name = $1",
    history_size: "SELECT CAST(SUM(history_bytes) AS SIGNED),
        CAST(SUM(CASE WHEN seat = $1 THEN history_bytes ELSE 0 END) AS SIGNED) FROM @seat",
    count_rows: "(SELECT 0 AS part, folds AS number, NULL AS ns, NULL AS task, NULL AS nominal,
        NULL AS value FROM @seat WHERE seat = $1)
    UNION ALL
    (SELECT 1, seq, ns, task, nominal, value FROM @difference FORCE INDEX (PRIMARY)
        WHERE p = $2 AND seq > $3 ORDER BY seq LIMIT $4)
    UNION ALL
    (SELECT 2, hour, NULL, NULL, NULL, value FROM @total FORCE INDEX (PRIMARY)
        WHERE p = $2 AND ns = $5 AND hour >= $6 AND hour <= $7 ORDER BY hour LIMIT $8)",
    totals: "SELECT ns, hour, value FROM @total FORCE INDEX (PRIMARY)
    WHERE p = $1 AND (ns, hour) IN ({2 3})",
};

/// Fails with [`GUARD_REFUSED`] if the statement before changed no row, so that the server makes
/// nothing of what follows in the same packet.
pub(super) const GUARD: &str = "SELECT 9223372036854775807 + IF(ROW_COUNT() = 1, 0, 1)";
/// The code of a guard: the sum is out of range.
pub(super) const GUARD_REFUSED: &str = "1690";
pub(super) const FENCE: &str = "UPDATE @seat SET batch = $4, `repair` = $5,
        history_bytes = history_bytes + $6
    WHERE seat = $1 AND epoch = $2 AND ($3 = x'' OR token = $3) AND batch = $4 - 1
        AND `repair` <= $5";
pub(super) const FOLD_FENCE: &str = "UPDATE @seat SET folds = folds + 1
    WHERE seat = $1 AND epoch = $2 AND ($3 = x'' OR token = $3) AND folds = $4";
/// Commits once more, so that the answer waits for replicas if the batch has to.
pub(super) const REPEAT: &str = "UPDATE @seat SET `repair` = $5, writes = writes + 1
    WHERE seat = $1 AND epoch = $2 AND ($3 = x'' OR token = $3) AND batch = $4
        AND `repair` <= $5";

pub(super) const TAKE_SEAT: &str = "UPDATE @seat SET epoch = GREATEST(epoch + 1, $2), token = $3,
        broker = $4, `until` = $5,
        expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + $6,
        batch = 0, `repair` = 0
    WHERE seat = $1 AND (broker = $4 OR expires <=
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)";
pub(super) const TAKEN_SEAT: &str = "SELECT epoch FROM @seat WHERE seat = $1 AND token = $2";
pub(super) const NEW_SEAT: &str = "INSERT INTO @seat
        (seat, epoch, token, broker, `until`, expires, batch, `repair`)
    VALUES ($1, $2, $3, $4, $5,
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + $6, 0, 0)";
pub(super) const RENEW: &str = "UPDATE @seat SET `until` = $4, writes = writes + 1,
        expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + $5
    WHERE seat = $1 AND epoch = $2 AND ($3 = x'' OR token = $3)";
pub(super) const RELEASE: &str = "UPDATE @seat SET `until` = 0, expires = 0
    WHERE seat = $1 AND epoch = $2 AND ($3 = x'' OR token = $3)";

/// Deletes a member whose heartbeat has expired.
pub(super) const FORGET_MEMBERS: &str = "DELETE FROM @member WHERE broker <> $1 AND expires <=
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000";
pub(super) const HEARTBEAT: &str = "INSERT INTO @member (broker, sent, expires, heartbeat)
    VALUES ($1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000,
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + $2, $3)
    ON DUPLICATE KEY UPDATE sent = VALUES(sent), expires = VALUES(expires),
        heartbeat = VALUES(heartbeat)";
pub(super) const LEAVE: &str = "DELETE FROM @member WHERE broker = $1";
pub(super) const PROPOSE: &str = "INSERT INTO @assignment (one, proposals, value)
    SELECT 0, 1, $3 FROM @seat WHERE seat = -1 AND epoch = $1 AND ($2 = x'' OR token = $2)
    ON DUPLICATE KEY UPDATE proposals = proposals + 1, value = VALUES(value)";
pub(super) const PROPOSE_META: &str = "INSERT INTO @meta (name, value) VALUES ($1, $2)
    ON DUPLICATE KEY UPDATE name = name";

/// Whether a writer owns its seat.
pub(super) const OWNS: &str = "SELECT 1 FROM @seat
    WHERE seat = $1 AND epoch = $2 AND ($3 = x'' OR token = $3)";
pub(super) const OLDEST_FIRES: &str = "SELECT task, nominal, ended_at, OCTET_LENGTH(record)
    FROM @fire FORCE INDEX (fire_age) WHERE p = $1 AND ended_at <= $2
    ORDER BY ended_at, task, nominal LIMIT $3";
/// Locks the seat: no batch is made until the end of the transaction. `$5` is the size of what is
/// deleted.
pub(super) const BEGIN_SWEEP: &str = "UPDATE @seat SET writes = writes + 1,
        history_bytes = GREATEST(0, history_bytes - $5)
    WHERE seat = $1 AND epoch = $2 AND ($3 = x'' OR token = $3)";
/// A record that was replaced since it was read ended later, and stays.
pub(super) const SWEEP_FIRES: &str = "DELETE FROM @fire
    WHERE p = $4 AND (task, nominal) IN ({6 7}) AND ended_at <= $8";
pub(super) const OLDEST_LETTERS: &str = "SELECT task, nominal
    FROM @letter FORCE INDEX (letter_age) WHERE p = $1 AND died_at <= $2
    ORDER BY died_at LIMIT $3";
pub(super) const COUNT_LETTERS: &str = "UPDATE @counts AS c JOIN (
        SELECT ns, COUNT(*) AS letters FROM @letter
        WHERE p = $4 AND (task, nominal) IN ({6 7}) AND died_at <= $8 GROUP BY ns) AS gone
    ON c.p = $4 AND c.ns = gone.ns SET c.dead_letters = c.dead_letters - gone.letters";
pub(super) const DIFFER_LETTERS: &str = "INSERT INTO @difference (p, ns, task, nominal, value)
    SELECT p, ns, task, nominal, group_name FROM @letter FORCE INDEX (PRIMARY)
    WHERE p = $4 AND (task, nominal) IN ({6 7}) AND died_at <= $8";
pub(super) const SWEEP_LETTERS: &str = "DELETE FROM @letter
    WHERE p = $4 AND (task, nominal) IN ({6 7}) AND died_at <= $8";
