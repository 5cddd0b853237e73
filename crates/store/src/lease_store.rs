//! The contract of a lease store.

use std::future::Future;
use std::time::Duration;

use punctual_core::{BrokerId, Lease, Seat, Timestamp};

use crate::error::StoreError;

/// Keeps who may act on what, and until when.
///
/// # Contract
///
/// **One holder.** A seat has at most one holder whose lease is not over.
///
/// **Epochs only grow.** Each `acquire` that succeeds gives an epoch larger than every earlier one of that seat, also to
/// the same broker again, and also across restarts of the store. From then on writes under any
/// earlier epoch are fenced.
///
/// **Time is the asker's.** `now` is the asker's clock before it asked; `until` is `now + ttl`. A store with a clock
/// of its own (Redis) counts the ttl by that, and the asker's view is the earlier of the two.
///
/// **Renewal is not acquisition.** `renew` extends the lease of the current epoch and never makes a new one, also
/// when it has run out, as long as nobody else has taken the seat.
pub trait LeaseStore: Send + Sync + 'static {
    /// Takes a seat that is free, whose lease is over, or that the broker itself held; else
    /// [`StoreError::Held`].
    fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Extends a lease; [`StoreError::Held`] if its epoch is no longer the seat's.
    fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Gives a seat back before its time. Writes under its epoch go on being accepted until somebody acquires
    /// the seat. Nothing happens if its epoch is no longer the seat's.
    fn release(&self, lease: &Lease) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Who held the seat last, and until when: [`Timestamp::EPOCH`] once it was given back.
    fn holder(&self, seat: Seat) -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;
}
