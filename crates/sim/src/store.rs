//! The store that all brokers share: a memory store with a clock of its own, that can fail over.
//!
//! In: questions of members and owners. Out: answers, and what the store itself can witness: under which epochs it has
//! accepted writes. All that it has made is kept in order, so that it can be made again without its last batches: a failover.
//! A failover loses batches, never acquisitions (a Redis that loses one is told apart by a token, which is tested there).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use punctual_cluster::{MemberAction, MemberEvent};
use punctual_core::{
    BrokerId, Epoch, FireEnd, Lease, PartitionId, Partitions, Seat, TaskId, Timestamp,
};
use punctual_engine::{Action, Event, LookupResult};
use punctual_store::{
    Batch, BatchNo, Change, LeaseStore, MembershipStore, MemoryStore, Resource, Retention,
    StoreError, TaskStore,
};

use crate::clock::SimClock;
use crate::variant::Variant;

/// A question to the store.
#[derive(Debug)]
pub(crate) enum StoreRequest {
    /// Of a member, and the time before it was asked.
    Member(MemberAction, Timestamp),
    /// Of an owner.
    Owner(PartitionId, Epoch, Action),
}

/// Its answer.
#[derive(Debug)]
pub(crate) enum StoreAnswer {
    Member(MemberEvent),
    Owner(PartitionId, Epoch, Event),
}

pub(crate) struct SimStore {
    pub(crate) memory: MemoryStore,
    partitions: Partitions,
    pub(crate) clock: SimClock,
    lease: Duration,
    variant: Variant,
    /// All that was made, and when, by the store's clock.
    made: Vec<(Timestamp, StoredWrite)>,
    /// The batch of each partition that was made last.
    last: BTreeMap<PartitionId, (Epoch, BatchNo)>,
    /// The last epoch under which a batch was accepted.
    accepted: BTreeMap<PartitionId, Epoch>,
    /// A write under an older epoch was accepted after one under a newer.
    pub(crate) epoch_decreased: Option<(PartitionId, Epoch, Epoch)>,
    /// What a failover has lost and no owner has sent again yet.
    lost: BTreeMap<PartitionId, LostBatches>,
    /// No failover has lost anything.
    pub(crate) nothing_lost: bool,
    /// Tasks of which something was lost, be it for a moment: until its owner notices, whoever reads sees the past.
    pub(crate) disturbed: BTreeSet<TaskId>,
    /// Tasks of which something was lost, with the owner that knew: nothing is promised of them.
    excused: BTreeSet<TaskId>,
}

#[derive(Debug, Clone)]
enum StoredWrite {
    Acquired(Seat, BrokerId, Timestamp),
    Renewed(Lease, Timestamp),
    Released(Lease),
    Applied(PartitionId, Epoch, Batch),
}

#[derive(Debug, Default)]
struct LostBatches {
    batches: BTreeSet<BatchNo>,
    tasks: BTreeSet<TaskId>,
}

impl SimStore {
    pub(crate) fn new(
        partitions: Partitions,
        clock: SimClock,
        lease: Duration,
        variant: Variant,
    ) -> Self {
        Self {
            memory: MemoryStore::new(partitions),
            partitions,
            clock,
            lease,
            variant,
            made: Vec::new(),
            last: BTreeMap::new(),
            accepted: BTreeMap::new(),
            epoch_decreased: None,
            lost: BTreeMap::new(),
            nothing_lost: true,
            disturbed: BTreeSet::new(),
            excused: BTreeSet::new(),
        }
    }

    /// Answers a question of a broker at a true time.
    pub(crate) fn answer(
        &mut self,
        broker: &BrokerId,
        request: StoreRequest,
        now: u64,
    ) -> StoreAnswer {
        let at = self.clock.at(now);
        self.memory.set_time(at).expect("nothing panics in it");
        match request {
            StoreRequest::Member(asked, then) => {
                StoreAnswer::Member(self.handle_member(broker, asked, then, at))
            }
            StoreRequest::Owner(partition, epoch, action) => StoreAnswer::Owner(
                partition,
                epoch,
                self.handle_owner(partition, epoch, action, at),
            ),
        }
    }

    fn handle_member(
        &mut self,
        broker: &BrokerId,
        asked: MemberAction,
        then: Timestamp,
        at: Timestamp,
    ) -> MemberEvent {
        let lease = self.lease;
        match asked {
            MemberAction::Heartbeat(presence) => {
                MemberEvent::HeartbeatAnswered(ready(self.memory.heartbeat(&presence, lease)))
            }
            MemberAction::Acquire(seat) => {
                let answer = ready(self.memory.acquire(seat, broker, lease, then));
                if answer.is_ok() {
                    self.made.push((at, StoredWrite::Acquired(seat, broker.clone(), then)));
                    self.taken(seat);
                }
                MemberEvent::Acquired(seat, answer)
            }
            MemberAction::Renew(held) => {
                let answer = ready(self.memory.renew(&held, lease, then));
                if answer.is_ok() {
                    self.made.push((at, StoredWrite::Renewed(held.clone(), then)));
                }
                MemberEvent::Renewed(held.seat, answer)
            }
            MemberAction::Release(held) => {
                let answer = ready(self.memory.release(&held));
                self.made.push((at, StoredWrite::Released(held.clone())));
                MemberEvent::Released(held.seat, answer)
            }
            MemberAction::Propose(held, assignment) => {
                MemberEvent::Proposed(ready(self.memory.propose(&held, &assignment)))
            }
            MemberAction::Leave | MemberAction::Directive(_) => {
                MemberEvent::Deregistered(ready(self.memory.leave(broker)))
            }
        }
    }

    fn handle_owner(
        &mut self,
        partition: PartitionId,
        epoch: Epoch,
        action: Action,
        at: Timestamp,
    ) -> Event {
        match action {
            Action::Load { after, until, limit } => {
                Event::Loaded(ready(self.memory.load(partition, after, until, limit)))
            }
            Action::Lookup(looks) => {
                Event::LookupResult(ready(LookupResult::read(&self.memory, partition, looks)))
            }
            Action::Sweep(now) => {
                let retention = Retention::default();
                Event::Swept(ready(self.memory.sweep(partition, epoch, retention, now)))
            }
            Action::Apply(batch) => Event::Applied(self.apply(partition, epoch, batch, at)),
            Action::Deliver(_) | Action::OrphanReport(_) | Action::Stop(_) | Action::End => {
                unreachable!("is not for the store")
            }
        }
    }

    fn apply(
        &mut self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let batch = self.corrupted(batch);
        let made = ready(self.memory.apply(partition, epoch, batch.clone()));
        match made {
            Ok(()) => {
                self.accept(partition, epoch);
                if let Some(lost) = self.lost.get_mut(&partition) {
                    lost.batches.remove(&batch.number);
                }
                self.lost.retain(|_, lost| !lost.batches.is_empty());
                // The same one again is made once.
                let last = (epoch, batch.number);
                if self.last.insert(partition, last) != Some(last) {
                    let lies = self.variant == Variant::StoreMakesWhatItRefuses
                        && batch.changes.iter().any(|change| change.grows())
                        && batch.number.get() % 5 == 4;
                    self.made.push((at, StoredWrite::Applied(partition, epoch, batch)));
                    if lies {
                        return Err(StoreError::Full {
                            room: Resource::Disk,
                            why: "no room".to_owned(),
                        });
                    }
                }
                Ok(())
            }
            Err(StoreError::Fenced { .. }) if self.variant == Variant::StoreDoesNotFence => {
                self.accept(partition, epoch);
                Ok(())
            }
            refused => refused,
        }
    }

    /// A broken store makes something else of a batch.
    fn corrupted(&self, mut batch: Batch) -> Batch {
        batch.changes.retain(|change| match (self.variant, &**change) {
            (Variant::StoreForgetsTasks, Change::Put(task)) => task.id.sequence().get() % 5 != 4,
            (Variant::StoreForgetsCancels, Change::Settle { record, .. }) => {
                record.end != FireEnd::Cancelled
            }
            (Variant::StoreForgetsPostponements, Change::Postpone { .. }) => false,
            (Variant::StoreForgetsReceipts, Change::Put(task)) => {
                !task.definition.namespace.is_of_receipts()
            }
            _ => true,
        });
        if self.variant == Variant::StoreMakesTwice {
            let settled = batch.changes.iter().filter(|it| matches!(***it, Change::Settle { .. }));
            let again: Vec<_> = settled.cloned().collect();
            batch.changes.extend(again);
        }
        batch
    }

    fn accept(&mut self, partition: PartitionId, epoch: Epoch) {
        let last = self.accepted.entry(partition).or_insert(epoch);
        if *last > epoch {
            self.epoch_decreased = Some((partition, *last, epoch));
        }
        *last = epoch.max(*last);
    }

    /// Somebody else decides from now on. What a failover has lost is lost.
    fn taken(&mut self, seat: Seat) {
        if let Seat::Partition(partition) = seat
            && let Some(lost) = self.lost.remove(&partition)
        {
            self.excused.extend(lost.tasks);
        }
    }

    /// Whether nothing is promised of a task: what was lost of it nobody has sent again. An owner that has nothing to write does
    /// not notice.
    pub(crate) fn is_excused(&self, id: TaskId) -> bool {
        self.excused.contains(&id) || self.lost.values().any(|lost| lost.tasks.contains(&id))
    }

    /// Fails over to a replica that lacks all batches since then, and all heartbeats. Out: how many batches are lost.
    pub(crate) fn fail_over(&mut self, since: Timestamp) -> usize {
        let mut owned_since = BTreeMap::new();
        for (index, (_, made)) in self.made.iter().enumerate() {
            if let StoredWrite::Acquired(Seat::Partition(partition), ..) = made {
                owned_since.insert(*partition, index);
            }
        }
        let mut count = 0;
        let mut kept = Vec::with_capacity(self.made.len());
        for (index, (at, made)) in std::mem::take(&mut self.made).into_iter().enumerate() {
            match made {
                StoredWrite::Applied(partition, _, batch)
                    if at > since && owned_since.get(&partition).is_some_and(|it| index > *it) =>
                {
                    let lost = self.lost.entry(partition).or_default();
                    count += usize::from(lost.batches.insert(batch.number));
                    lost.tasks.extend(batch.changes.iter().map(|change| change.task_id()));
                    self.disturbed.extend(&lost.tasks);
                    self.nothing_lost = false;
                }
                made => kept.push((at, made)),
            }
        }
        self.made = kept;
        self.last.clear();
        for (_, made) in &self.made {
            if let StoredWrite::Applied(partition, epoch, batch) = made {
                self.last.insert(*partition, (*epoch, batch.number));
            }
        }
        self.replay();
        count
    }

    fn replay(&mut self) {
        self.memory = MemoryStore::new(self.partitions);
        let lease = self.lease;
        for (at, made) in &self.made {
            self.memory.set_time(*at).expect("nothing panics in it");
            let done = match made {
                StoredWrite::Acquired(seat, broker, then) => {
                    ready(self.memory.acquire(*seat, broker, lease, *then)).map(drop)
                }
                StoredWrite::Renewed(held, then) => {
                    ready(self.memory.renew(held, lease, *then)).map(drop)
                }
                StoredWrite::Released(held) => ready(self.memory.release(held)),
                StoredWrite::Applied(partition, epoch, batch) => {
                    ready(self.memory.apply(*partition, *epoch, batch.clone()))
                }
            };
            done.expect("it was made once, in this order");
        }
    }
}

/// The memory store never waits.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the memory store never waits"),
    }
}
