//! The contract of a lease store.
//!
//! Leases decide which broker may write: [`TaskStore`](crate::TaskStore) accepts batches only under
//! the epoch of the lease that was acquired last.

use std::future::Future;
use std::time::Duration;

use punctual_core::{BrokerId, Lease, Seat, Timestamp};

use crate::error::StoreError;

/// Keeps which broker holds each seat, under which epoch and until when.
///
/// # Contract
///
/// **One holder.** A seat has at most one holder whose lease has not expired.
///
/// **Epochs only grow.** Each successful `acquire` returns an epoch larger than every earlier epoch
/// of that seat, even for the same broker and even after the store was restarted. From then on,
/// writes under any earlier epoch are fenced.
///
/// **Expiry does not fence.** Writes under the current epoch are accepted until another `acquire`
/// succeeds, even if the lease has expired or was released.
///
/// **Time.** `now` is the caller's clock, read before the call. The returned `until` is
/// `now + ttl`. A store with its own clock (Redis) counts `ttl` by that clock from the moment of
/// the call. Because `now` was read earlier, the lease ends no later for the caller than for the
/// store.
///
/// **Renewal.** `renew` extends the lease of the current epoch and never creates an epoch. It
/// succeeds even after the lease has expired, as long as the seat was not acquired since.
pub trait LeaseStore: Send + Sync + 'static {
    /// Acquires a seat that was never held, whose lease has expired or was released, or that
    /// `broker` itself holds. Otherwise returns [`StoreError::Held`].
    fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Extends a lease. Returns [`StoreError::Held`] if its epoch is no longer the current epoch of
    /// the seat.
    fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Releases a lease before it expires, so that another broker can acquire the seat at once.
    /// Does nothing if its epoch is no longer the current epoch of the seat.
    fn release(&self, lease: &Lease) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the last lease of a seat, or `None` if the seat was never held. After a release,
    /// `until` is [`Timestamp::EPOCH`].
    fn holder(&self, seat: Seat) -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;
}
