//! Leases: one row per seat, which is also the fence of the partition's batches. Time is the clock
//! of the database.

use std::time::Duration;

use punctual_core::{BrokerId, Epoch, Lease, Seat, Timestamp};
use punctual_store::{LeaseStore, StoreError, acquisition_token};

use crate::database::{SeatClaim, SqlDatabase, SqlRole};
use crate::error::store_error;
use crate::store::SqlStore;
use crate::values::{Columns as _, StatementParam, bigint};

/// The longest ttl, so that sums do not overflow: a year.
const TTL_MAX: Duration = Duration::from_secs(365 * 86_400);

pub(crate) fn millis(ttl: Duration) -> i64 {
    bigint(ttl.min(TTL_MAX).as_millis())
}

impl<D: SqlDatabase> SqlStore<D> {
    /// Reads a lease from the columns epoch, broker, until.
    pub(crate) fn read_lease(&self, seat: Seat, row: &D::Row) -> Result<Lease, StoreError> {
        let (epoch, broker) = (self.read_epoch(seat, row.int(0))?, row.text(1));
        let until = Timestamp::try_from_millis(i128::from(row.int(2)));
        let until = until.map_err(|_| self.damaged_seat(seat, "until is not a time"))?;
        Ok(Lease { seat, broker: BrokerId::new(&broker), epoch, until })
    }

    fn read_epoch(&self, seat: Seat, epoch: i64) -> Result<Epoch, StoreError> {
        let read = u32::try_from(epoch).ok().and_then(Epoch::new);
        read.ok_or_else(|| self.damaged_seat(seat, "epoch is out of range"))
    }

    fn damaged_seat(&self, seat: Seat, why: &str) -> StoreError {
        let row = self.seat_row(seat).unwrap_or(-1);
        self.damage.found(
            "the lease",
            format!("{}, seat = {row}", self.database.table("seat")),
            why,
        )
    }
}

impl<D: SqlDatabase> LeaseStore for SqlStore<D> {
    async fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        let row = self.seat_row(seat)?;
        let until = now.after(ttl);
        let token = acquisition_token();
        let claim = SeatClaim {
            seat: row,
            next: self.epochs.next_epoch(seat).into(),
            token: &token,
            broker: broker.as_str(),
            until: bigint(until.as_millis()),
            ttl: millis(ttl),
        };
        let granted = self.database.acquire(&claim).await.map_err(store_error::<D>)?;
        let granted = granted.ok_or(StoreError::Held { seat })?;
        let epoch = self.read_epoch(seat, granted)?;
        self.epochs.acquire(seat, epoch, token);
        if let Seat::Partition(partition) = seat {
            self.weights.forget(partition);
        }
        Ok(Lease { seat, broker: broker.clone(), epoch, until })
    }

    async fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        let seat = lease.seat;
        let until = now.after(ttl);
        let writer = self.writer(seat, lease.epoch)?;
        let renewed = self.database.renew(&writer, bigint(until.as_millis()), millis(ttl)).await;
        match renewed.map_err(store_error::<D>)? {
            true => Ok(Lease { until, ..lease.clone() }),
            false => Err(StoreError::Held { seat }),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        let writer = self.writer(lease.seat, lease.epoch)?;
        self.database.release(&writer).await.map_err(store_error::<D>)
    }

    async fn holder(&self, seat: Seat) -> Result<Option<Lease>, StoreError> {
        let row = [StatementParam::Int(self.seat_row(seat)?.into())];
        let rows = self.read(SqlRole::Seats, D::READS.holder, &row).await?;
        let lease = rows.first().map(|row| self.read_lease(seat, row)).transpose()?;
        if let Some(lease) = &lease {
            self.epochs.observe(seat, lease.epoch);
        }
        Ok(lease)
    }
}
