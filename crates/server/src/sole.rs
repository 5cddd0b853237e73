//! The owners of a broker that shares its store with no other: it owns all partitions from start
//! to end.
//!
//! An owner that panics is replaced by one with a higher epoch, after a pause that grows while
//! owners of the partition keep panicking. Until then calls for the partition are refused, and the
//! broker is not ready; other partitions are not affected. An owner whose store fails stops the
//! broker.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{BrokerId, Clock as _, PartitionId, Partitions, Seat, Timestamp};
use punctual_engine::{OwnerFailure, Ownership, take};
use punctual_store::{LeaseStore as _, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::BrokerError;
use crate::owner_runner::OwnerRunner;
use crate::store::Store;

/// The lease of a partition: only its epoch matters.
const LEASE: Duration = Duration::from_secs(5);
/// The id of the broker. It does not depend on the port, so that the broker need not wait for its
/// own lease to end after a restart.
const BROKER: &str = "sole";
/// The pause after a panic that is not soon after another: callers that retry do not notice more.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The longest pause: a partition whose owner panics whenever it loads costs next to nothing, and
/// an operator who has removed the cause does not wait long.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long an owner must run for the next pause to be the first again.
const STEADY: Duration = Duration::from_secs(60);

/// The owners of all partitions.
pub(crate) struct SoleOwners {
    runner: Arc<OwnerRunner>,
    /// One for each partition, until its owner has drained or the broker must stop.
    supervisors: JoinSet<Result<(), BrokerError>>,
}

impl SoleOwners {
    /// Takes all partitions and starts their owners.
    pub(crate) async fn start(
        runner: OwnerRunner,
        draining: watch::Receiver<bool>,
    ) -> Result<Self, BrokerError> {
        let runner = Arc::new(runner);
        let mut supervisors = JoinSet::new();
        for partition in runner.owners.partitions().iter() {
            let ownership = take_partition(&runner, partition).await?;
            let end = runner.start(ownership, Vec::new())?;
            let (runner, draining) = (Arc::clone(&runner), draining.clone());
            supervisors.spawn(supervise(runner, ownership, end, draining));
        }
        Ok(Self { runner, supervisors })
    }

    /// Completes when the broker must stop.
    pub(crate) async fn failed(&mut self) -> BrokerError {
        match self.supervisors.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(_) => StoreError::Broken("an owner ended unexpectedly".to_owned()).into(),
            None => std::future::pending().await,
        }
    }

    /// Drains all owners and waits for their deliveries in flight. The broker is draining already.
    pub(crate) async fn drain(&mut self) {
        self.runner.owners.handles().iter().for_each(|(_, handle)| handle.drain());
        while self.supervisors.join_next().await.is_some() {}
    }
}

/// Replaces the owner of a partition whenever it panics, until the broker drains.
async fn supervise(
    runner: Arc<OwnerRunner>,
    mut ownership: Ownership,
    first_end: impl Future<Output = Option<OwnerFailure>>,
    mut draining: watch::Receiver<bool>,
) -> Result<(), BrokerError> {
    let partition = ownership.partition;
    let mut pauses = RestartPauses::default();
    let mut started_at = runner.clock.now();
    let mut failure = first_end.await;
    loop {
        match failure {
            None => return Ok(()),
            Some(OwnerFailure::Store(error)) => return Err(error.into()),
            Some(OwnerFailure::Panicked(_)) => {}
        }
        runner.remove(partition, ownership.epoch);
        let pause = pauses.after(runner.clock.now().since(started_at));
        if timeout(pause, draining.wait_for(|draining| *draining)).await.is_ok() {
            return Ok(());
        }
        ownership = take_partition(&runner, partition).await?;
        started_at = runner.clock.now();
        let end = runner.start(ownership, Vec::new())?;
        // A drain that has begun in the meantime has not reached this owner.
        if *draining.borrow() {
            runner.owners.handle(partition).inspect(|handle| handle.drain());
        }
        failure = end.await;
    }
}

async fn take_partition(
    runner: &OwnerRunner,
    partition: PartitionId,
) -> Result<Ownership, StoreError> {
    let (broker, now) = (BrokerId::new(BROKER), runner.clock.now());
    take(runner.store.as_ref(), partition, &broker, LEASE, now).await
}

/// The pauses before an owner that has panicked is replaced.
#[derive(Debug, Default)]
struct RestartPauses {
    last: Option<Duration>,
}

impl RestartPauses {
    /// Returns the pause after a panic of an owner that ran for this long.
    fn after(&mut self, ran_for: Duration) -> Duration {
        let soon = self.last.filter(|_| ran_for < STEADY);
        let pause = soon.map_or(PAUSE_FIRST, |last| (last * 2).min(PAUSE_MAX));
        self.last = Some(pause);
        pause
    }
}

/// Returns when the store was last opened, according to its leases. If the machine's clock is
/// before that time, the clock was or is wrong.
pub(crate) async fn last_opened(
    partitions: Partitions,
    store: &Store,
) -> Result<Option<Timestamp>, StoreError> {
    let mut opened = None;
    for partition in partitions.iter() {
        let lease = store.holder(Seat::Partition(partition)).await?;
        let taken = lease.map(|lease| lease.until.since(Timestamp::EPOCH).saturating_sub(LEASE));
        opened = opened.max(taken);
    }
    Ok(opened.map(|opened| Timestamp::EPOCH.after(opened)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_while_owners_panic_soon_and_starts_over_after_a_steady_one() {
        let (soon, steady) = (Duration::from_secs(1), STEADY);
        let mut pauses = RestartPauses::default();
        for (ran_for, want_millis) in [
            (steady, 250),
            (soon, 500),
            (soon, 1_000),
            (soon, 2_000),
            (soon, 4_000),
            (soon, 8_000),
            (soon, 16_000),
            (soon, 30_000),
            (soon, 30_000),
            (steady, 250),
            (soon, 500),
        ] {
            assert_eq!(pauses.after(ran_for), Duration::from_millis(want_millis));
        }
    }
}
