//! Sweeps: delete records and dead letters that are past their retention, some thousand per
//! statement, under the epoch of the owner.

use std::time::Duration;

use punctual_core::{Epoch, PartitionId, Seat, Timestamp};
use punctual_store::{Retention, StoreError, Swept};

use crate::database::{SqlDatabase, SqlRole, SweepBounds, Writer};
use crate::difference_weights::DIFFERENCE_WEIGHT;
use crate::error::store_error;
use crate::store::SqlStore;
use crate::values::{Columns as _, StatementParam, bigint};

/// Statements of one sweep. The next sweep deletes what is left.
const ROUNDS_MAX: usize = 20;

/// Returns the last instant that is past an age; −1 if none is.
fn past(now: Timestamp, age: Duration) -> i64 {
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    now.as_millis().checked_sub(age).map_or(-1, bigint)
}

impl<D: SqlDatabase> SqlStore<D> {
    pub(crate) async fn delete_past(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Swept, StoreError> {
        let writer = self.writer(Seat::Partition(partition), epoch)?;
        let p = self.column(partition)?;
        let _one = self.sweeping.lock().await;
        let mut swept = Swept::default();
        let excess = self.excess(&writer, retention.history_bytes).await?;
        let aged = past(now, retention.history_age);
        let mut bounds = SweepBounds { aged, excess, rows_max: D::SWEPT_MAX };
        for _ in 0..ROUNDS_MAX {
            let deleted = self.database.sweep_fires(&writer, p, bounds).await;
            let Some(deleted) = deleted.map_err(store_error::<D>)? else {
                return Err(self.fenced(&writer, partition, epoch).await);
            };
            swept.history += u64::try_from(deleted.rows).unwrap_or(0);
            bounds.excess = (bounds.excess - deleted.bytes).max(0);
            if deleted.rows < bounds.rows_max {
                break;
            }
        }
        swept.dead = self.delete_letters(&writer, (partition, p, epoch), retention, now).await?;
        self.fold_if_many(partition, epoch).await;
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
            let deleted = self.database.sweep_letters(writer, p, aged).await;
            let Some(deleted) = deleted.map_err(store_error::<D>)? else {
                return Err(self.fenced(writer, partition, epoch).await);
            };
            let rows = u64::try_from(deleted).unwrap_or(0);
            self.weights.add(partition, rows * DIFFERENCE_WEIGHT);
            all += rows;
            if deleted < D::SWEPT_MAX {
                break;
            }
        }
        Ok(all)
    }

    /// Returns how many bytes of history a partition has to delete: its share of the excess of all
    /// partitions.
    async fn excess(&self, writer: &Writer, history_bytes: u64) -> Result<i64, StoreError> {
        let seat = [StatementParam::Int(writer.seat.into())];
        let rows = self.read(SqlRole::Sweeps, D::READS.history_size, &seat).await?;
        let column = |index: usize| {
            let number = rows.first().and_then(|row| row.int_or_null(index));
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
