//! Leases: one row per seat, which is also the fence of the partition's batches. Time is the clock
//! of the database.

use std::time::Duration;

use punctual_core::{BrokerId, Epoch, Lease, Seat, Timestamp};
use punctual_sql::tokio_postgres::Row;
use punctual_store::{LeaseStore, StoreError, acquisition_token};

use crate::postgres::values::bigint;
use crate::store::PostgresStore;

/// The longest ttl, so that sums do not overflow: a year.
const TTL_MAX: Duration = Duration::from_secs(365 * 86_400);

const ACQUIRE: &str = "INSERT INTO seat AS s
        (seat, epoch, token, broker, until, expires, batch, repair)
    VALUES ($1, $2, $3, $4, $5, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $6, 0, 0)
    ON CONFLICT (seat) DO UPDATE SET epoch = greatest(s.epoch + 1, excluded.epoch),
        token = excluded.token, broker = excluded.broker, until = excluded.until,
        expires = excluded.expires, batch = 0, repair = 0
    WHERE s.broker = excluded.broker
        OR s.expires <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    RETURNING epoch";
const RENEW: &str = "UPDATE seat SET until = $4,
        expires = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $5
    WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3) RETURNING 1";
const RELEASE: &str = "UPDATE seat SET until = 0, expires = 0
    WHERE seat = $1 AND epoch = $2 AND ($3::text = '' OR token = $3)";
const HOLDER: &str = "SELECT epoch, broker, until FROM seat WHERE seat = $1";

pub(crate) fn millis(ttl: Duration) -> i64 {
    bigint(ttl.min(TTL_MAX).as_millis())
}

impl PostgresStore {
    /// Reads a lease from the columns epoch, broker, until.
    pub(crate) fn read_lease(
        &self,
        seat: Seat,
        row: &Row,
        from: usize,
    ) -> Result<Lease, StoreError> {
        let (epoch, broker): (i64, String) = (row.get(from), row.get(from + 1));
        let epoch = self.read_epoch(seat, epoch)?;
        let until = Timestamp::try_from_millis(i128::from(row.get::<_, i64>(from + 2)));
        let until = until.map_err(|_| self.damaged_seat(seat, "until is not a time"))?;
        Ok(Lease { seat, broker: BrokerId::new(&broker), epoch, until })
    }

    fn read_epoch(&self, seat: Seat, epoch: i64) -> Result<Epoch, StoreError> {
        let read = u32::try_from(epoch).ok().and_then(Epoch::new);
        read.ok_or_else(|| self.damaged_seat(seat, "epoch is out of range"))
    }

    fn damaged_seat(&self, seat: Seat, why: &str) -> StoreError {
        let row = self.seat_row(seat).unwrap_or(-1);
        self.damage.found("the lease", format!("table seat, seat = {row}"), why)
    }
}

impl LeaseStore for PostgresStore {
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
        let next = i64::from(self.epochs.next_epoch(seat));
        let rows = self
            .seats
            .call(
                &self.options,
                ACQUIRE,
                &[&row, &next, &token, &broker.as_str(), &bigint(until.as_millis()), &millis(ttl)],
            )
            .await?;
        let granted = rows.first().ok_or(StoreError::Held { seat })?;
        let epoch = self.read_epoch(seat, granted.get(0))?;
        self.epochs.acquire(seat, epoch, token);
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
        let (row, epoch) = (self.seat_row(seat)?, i64::from(lease.epoch.get()));
        let token = self.epochs.token(seat, lease.epoch);
        let rows = self
            .seats
            .call(
                &self.options,
                RENEW,
                &[&row, &epoch, &token, &bigint(until.as_millis()), &millis(ttl)],
            )
            .await?;
        match rows.is_empty() {
            true => Err(StoreError::Held { seat }),
            false => Ok(Lease { until, ..lease.clone() }),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        let (row, epoch) = (self.seat_row(lease.seat)?, i64::from(lease.epoch.get()));
        let token = self.epochs.token(lease.seat, lease.epoch);
        self.seats.call(&self.options, RELEASE, &[&row, &epoch, &token]).await?;
        Ok(())
    }

    async fn holder(&self, seat: Seat) -> Result<Option<Lease>, StoreError> {
        let row = self.seat_row(seat)?;
        let rows = self.seats.call(&self.options, HOLDER, &[&row]).await?;
        let lease = rows.first().map(|row| self.read_lease(seat, row, 0)).transpose()?;
        if let Some(lease) = &lease {
            self.epochs.observe(seat, lease.epoch);
        }
        Ok(lease)
    }
}
