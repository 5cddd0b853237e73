//! Writes a batch: one transaction that begins with the fence. If the fence refuses it, the row of
//! the seat tells why. Behind some batches, differences of counts are folded.

use punctual_core::{Epoch, PartitionId, Seat};
use punctual_store::{Batch, BatchNo, StoreError};

use crate::batch::BatchRows;
use crate::database::{BatchEnd, BatchTurn, SqlDatabase, SqlRole, Writer};
use crate::error::{batch_error, store_error};
use crate::store::SqlStore;
use crate::values::{Columns as _, StatementParam, bigint};

impl<D: SqlDatabase> SqlStore<D> {
    /// Returns the values that name the owner of a seat in the database.
    pub(crate) fn writer(&self, seat: Seat, epoch: Epoch) -> Result<Writer, StoreError> {
        let token = self.epochs.token(seat, epoch);
        Ok(Writer { seat: self.seat_row(seat)?, epoch: epoch.get().into(), token })
    }

    pub(crate) async fn write_batch(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        let writer = self.writer(Seat::Partition(partition), epoch)?;
        let p = self.column(partition)?;
        let (number, repair) = (batch.number, batch.repair);
        let turn = BatchTurn { number: bigint(number.get()), repair: bigint(repair.get()) };
        let rows = BatchRows::of(batch);
        let growth = rows.growth();
        self.weights.add(partition, rows.difference_weight());
        let slot = usize::from(partition.get());
        let made = self.database.write(slot, p, &writer, turn, rows).await;
        match made.map_err(|error| batch_error::<D>(error, growth))? {
            BatchEnd::Made => {}
            BatchEnd::Refused => self.explain(&writer, partition, epoch, turn).await?,
        }
        self.epochs.acknowledge(partition, epoch, number);
        self.fold_if_many(partition, epoch).await;
        Ok(())
    }

    /// Reads why the fence refused a batch. A batch that was made before is fine.
    async fn explain(
        &self,
        writer: &Writer,
        partition: PartitionId,
        ours: Epoch,
        turn: BatchTurn,
    ) -> Result<(), StoreError> {
        let seat = [StatementParam::Int(writer.seat.into())];
        let rows = self.read(SqlRole::Seats, D::READS.seat, &seat).await?;
        let none = || StoreError::Fenced { partition, ours, current: Epoch::NONE };
        let row = rows.first().ok_or_else(none)?;
        let (current, token) = (row.int(0), row.text(1));
        let (last, last_repair) = (row.int(2), row.int(3));
        if current != writer.epoch || (!writer.token.is_empty() && token != writer.token) {
            let read = u32::try_from(current).ok().and_then(Epoch::new);
            let Some(current) = read else { return Err(none()) };
            self.rewound(self.epochs.fenced(partition, ours, current));
            self.epochs.observe(Seat::Partition(partition), current);
            return Err(StoreError::Fenced { partition, ours, current });
        }
        if last_repair > turn.repair {
            return Err(StoreError::Fenced { partition, ours, current: ours });
        }
        if last == turn.number && last > 0 {
            let slot = usize::from(partition.get());
            let repeated = self.database.repeat(slot, writer, turn).await;
            return match repeated.map_err(store_error::<D>)? {
                true => Ok(()),
                // Another write came in between; sent again, the batch is refused with the reason.
                false => Err(StoreError::Unavailable("the seat changed meanwhile".into())),
            };
        }
        let last = BatchNo::new(u64::try_from(last).unwrap_or(0));
        self.rewound(self.epochs.gap(partition, ours, last));
        let given = BatchNo::new(u64::try_from(turn.number).unwrap_or(0));
        Err(StoreError::Gap { partition, expected: last.next(), given })
    }

    /// Returns the error for a write whose seat was not found under its epoch and token.
    pub(crate) async fn fenced(
        &self,
        writer: &Writer,
        partition: PartitionId,
        ours: Epoch,
    ) -> StoreError {
        let seat = [StatementParam::Int(writer.seat.into())];
        match self.read(SqlRole::Seats, D::READS.seat, &seat).await {
            Err(error) => error,
            Ok(rows) => {
                let current = rows.first().and_then(|row| u32::try_from(row.int(0)).ok());
                let current = current.and_then(Epoch::new).unwrap_or(Epoch::NONE);
                StoreError::Fenced { partition, ours, current }
            }
        }
    }
}
