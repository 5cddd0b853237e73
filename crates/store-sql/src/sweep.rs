//! Sweeps: delete records and dead letters that are past their retention, some thousand per
//! statement, under the epoch of the owner.

use std::time::Duration;

use punctual_core::{Epoch, PartitionId, Timestamp};
use punctual_store::{Retention, StoreError, Swept};

use crate::apply::Writer;
use crate::error::store_error;
use crate::postgres::values::bigint;
use crate::store::PostgresStore;

/// Rows that one statement deletes: some ten milliseconds.
const ROWS_MAX: i64 = 5000;
/// Statements of one sweep. The next sweep deletes what is left.
const ROUNDS_MAX: usize = 20;

const SIZE: &str = "SELECT sum(history_bytes)::bigint,
    sum(history_bytes) FILTER (WHERE seat = $1)::bigint FROM seat";
const SWEEP_FIRES: &str = "WITH own AS (
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
const SWEEP_LETTERS: &str = "WITH own AS (
        SELECT seat FROM seat WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3)
        FOR UPDATE),
    past AS (
        SELECT task, nominal FROM letter
        WHERE p = $4 AND died_at <= $5 AND EXISTS (SELECT FROM own)
        ORDER BY died_at LIMIT $6),
    gone AS (
        DELETE FROM letter USING past
        WHERE letter.p = $4 AND letter.task = past.task AND letter.nominal = past.nominal
        RETURNING ns),
    fewer AS (SELECT ns, count(*) AS letters FROM gone GROUP BY ns),
    counted AS (
        UPDATE counts SET dead_letters = dead_letters - fewer.letters FROM fewer
        WHERE counts.p = $4 AND counts.ns = fewer.ns RETURNING 1)
    SELECT (SELECT count(*) FROM own), (SELECT count(*) FROM gone)";

/// Returns the last instant that is past an age; −1 if none is.
fn past(now: Timestamp, age: Duration) -> i64 {
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    now.as_millis().checked_sub(age).map_or(-1, bigint)
}

impl PostgresStore {
    pub(crate) async fn delete_past(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Swept, StoreError> {
        let writer = self.writer(partition, epoch)?;
        let p = self.column(partition)?;
        let _one = self.sweeping.lock().await;
        let mut swept = Swept::default();
        let mut excess = self.excess(&writer, retention.history_bytes).await?;
        let aged = past(now, retention.history_age);
        for _ in 0..ROUNDS_MAX {
            let oldest = if excess > 0 { i64::MAX } else { aged };
            let rows = self
                .sweeps
                .query(
                    &self.options,
                    SWEEP_FIRES,
                    &[
                        &writer.seat,
                        &writer.epoch,
                        &writer.token,
                        &p,
                        &aged,
                        &excess,
                        &oldest,
                        &ROWS_MAX,
                    ],
                )
                .await
                .map_err(store_error)?;
            let [own, gone, bytes] =
                [0, 1, 2].map(|column| rows.first().map_or(0, |row| row.get::<_, i64>(column)));
            if own == 0 {
                return Err(self.fenced(&writer, partition, epoch).await);
            }
            swept.history += u64::try_from(gone).unwrap_or(0);
            excess = (excess - bytes).max(0);
            if gone < ROWS_MAX {
                break;
            }
        }
        swept.dead = self.delete_letters(&writer, (partition, p, epoch), retention, now).await?;
        Ok(swept)
    }

    async fn delete_letters(
        &self,
        writer: &Writer,
        (partition, p, epoch): (PartitionId, i16, Epoch),
        retention: Retention,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let aged = past(now, retention.dead_age);
        let mut all = 0;
        for _ in 0..ROUNDS_MAX {
            let rows = self
                .sweeps
                .call(
                    &self.options,
                    SWEEP_LETTERS,
                    &[&writer.seat, &writer.epoch, &writer.token, &p, &aged, &ROWS_MAX],
                )
                .await?;
            let [own, gone] =
                [0, 1].map(|column| rows.first().map_or(0, |row| row.get::<_, i64>(column)));
            if own == 0 {
                return Err(self.fenced(writer, partition, epoch).await);
            }
            all += u64::try_from(gone).unwrap_or(0);
            if gone < ROWS_MAX {
                break;
            }
        }
        Ok(all)
    }

    /// Returns how many bytes of history a partition has to delete: its share of the excess of all
    /// partitions.
    async fn excess(&self, writer: &Writer, history_bytes: u64) -> Result<i64, StoreError> {
        let rows = self.sweeps.call(&self.options, SIZE, &[&writer.seat]).await?;
        let column = |index: usize| {
            let number = rows.first().and_then(|row| row.get::<_, Option<i64>>(index));
            u64::try_from(number.unwrap_or(0)).unwrap_or(0)
        };
        let (total, ours) = (column(0), column(1));
        if ours == 0 || total <= history_bytes {
            return Ok(0);
        }
        let excess = u128::from(total - history_bytes);
        let share = (excess * u128::from(ours)).div_ceil(u128::from(total));
        Ok(bigint(share))
    }
}
