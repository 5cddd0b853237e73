//! The store that all brokers share: a memory store with a clock of its own, which can fail over.
//!
//! It answers requests of members and owners and records under which epochs it has accepted writes.
//! All writes are kept in order, so that a failover can replay them without the last batches. A
//! failover loses batches and never acquisitions: a Redis that loses one is detected by a token,
//! which is tested there.

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
    Batch, BatchNo, Change, LeaseStore, MembershipStore, MemoryStore, RepairNo, Resource,
    Retention, StoreError, TaskStore,
};

use crate::clock::SimClock;
use crate::variant::Variant;

/// A request to the store.
#[derive(Debug)]
pub(crate) enum StoreRequest {
    /// A request of a member, and the time before it was sent.
    Member(MemberAction, Timestamp),
    /// A request of an owner.
    Owner(PartitionId, Epoch, Action),
}

/// The answer to a request.
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
    /// All writes, with their time by the store's clock.
    writes: Vec<(Timestamp, StoredWrite)>,
    /// The last batch of each partition.
    last: BTreeMap<PartitionId, (Epoch, BatchNo)>,
    /// The last repair of each partition.
    repairs: BTreeMap<PartitionId, (Epoch, RepairNo)>,
    /// The last epoch under which a batch was accepted.
    accepted: BTreeMap<PartitionId, Epoch>,
    /// A write of an older epoch that was accepted after one of a newer epoch.
    pub(crate) epoch_decreased: Option<(PartitionId, Epoch, Epoch)>,
    /// Batches that a failover lost and that no owner has written again yet.
    lost: BTreeMap<PartitionId, LostBatches>,
    /// Whether no failover has lost anything.
    pub(crate) nothing_lost: bool,
    /// Tasks in lost batches, even if they were written again: until their owner notices the
    /// failover, reads return an old state.
    pub(crate) disturbed: BTreeSet<TaskId>,
    /// Tasks in lost batches whose owner is gone too: nothing is promised about them.
    excused: BTreeSet<TaskId>,
}

#[derive(Debug, Clone)]
enum StoredWrite {
    Acquired(Seat, BrokerId, Timestamp),
    Renewed(Lease, Timestamp),
    Released(Lease),
    Applied(PartitionId, Epoch, Batch),
    /// A batch was sent again and began a repair.
    Repaired(PartitionId, Epoch, Batch),
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
            writes: Vec::new(),
            last: BTreeMap::new(),
            repairs: BTreeMap::new(),
            accepted: BTreeMap::new(),
            epoch_decreased: None,
            lost: BTreeMap::new(),
            nothing_lost: true,
            disturbed: BTreeSet::new(),
            excused: BTreeSet::new(),
        }
    }

    /// Answers a request of a broker at a true time.
    pub(crate) fn answer(
        &mut self,
        broker: &BrokerId,
        request: StoreRequest,
        now: u64,
    ) -> StoreAnswer {
        let at = self.clock.at(now);
        self.memory.set_time(at).expect("the memory store works");
        match request {
            StoreRequest::Member(action, sent_at) => {
                StoreAnswer::Member(self.handle_member(broker, action, sent_at, at))
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
        action: MemberAction,
        sent_at: Timestamp,
        at: Timestamp,
    ) -> MemberEvent {
        let lease = self.lease;
        match action {
            MemberAction::Heartbeat(heartbeat) => {
                MemberEvent::HeartbeatAnswered(ready(self.memory.heartbeat(&heartbeat, lease)))
            }
            MemberAction::Acquire(seat) => {
                let answer = ready(self.memory.acquire(seat, broker, lease, sent_at));
                if answer.is_ok() {
                    self.writes.push((at, StoredWrite::Acquired(seat, broker.clone(), sent_at)));
                    self.on_acquired(seat);
                }
                MemberEvent::Acquired(seat, answer)
            }
            MemberAction::Renew(held) => {
                let answer = ready(self.memory.renew(&held, lease, sent_at));
                if answer.is_ok() {
                    self.writes.push((at, StoredWrite::Renewed(held.clone(), sent_at)));
                }
                MemberEvent::Renewed(held.seat, answer)
            }
            MemberAction::Release(held) => {
                let answer = ready(self.memory.release(&held));
                self.writes.push((at, StoredWrite::Released(held.clone())));
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
            Action::Lookup(lookups) => {
                Event::LookupResult(ready(LookupResult::read(&self.memory, partition, lookups)))
            }
            Action::Sweep(now) => {
                let retention = Retention::default();
                Event::Swept(ready(self.memory.sweep(partition, epoch, retention, now)))
            }
            Action::Apply(batch) => Event::Applied(self.apply(partition, epoch, batch, at)),
            Action::Deliver(_) | Action::OrphanReport(_) | Action::Stop(_) | Action::End => {
                unreachable!("not a request to the store")
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
        let writes = ready(self.memory.apply(partition, epoch, batch.clone()));
        match writes {
            Ok(()) => {
                self.accept(partition, epoch);
                if let Some(lost) = self.lost.get_mut(&partition) {
                    lost.batches.remove(&batch.number);
                }
                self.lost.retain(|_, lost| !lost.batches.is_empty());
                // A batch that is sent again is applied once.
                let last = (epoch, batch.number);
                let repair = (epoch, batch.repair);
                let begins = self.repairs.insert(partition, repair) != Some(repair);
                if self.last.get(&partition) == Some(&last) && begins {
                    let again = StoredWrite::Repaired(partition, epoch, batch.clone());
                    self.writes.push((at, again));
                }
                if self.last.insert(partition, last) != Some(last) {
                    let lies = self.variant == Variant::StoreAppliesWhatItRefuses
                        && batch.changes.iter().any(|change| change.grows())
                        && batch.number.get() % 5 == 4;
                    self.writes.push((at, StoredWrite::Applied(partition, epoch, batch)));
                    if lies {
                        return Err(StoreError::Full {
                            resource: Resource::Disk,
                            why: "simulated".to_owned(),
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

    /// Changes a batch in the variants in which the store is broken.
    fn corrupted(&self, mut batch: Batch) -> Batch {
        batch.changes.retain(|change| match (self.variant, &**change) {
            (Variant::StoreForgetsTasks, Change::Put(task)) => task.id.sequence().get() % 5 != 4,
            (Variant::StoreForgetsCancels, Change::Settle { record, .. }) => {
                record.end != FireEnd::Cancelled
            }
            (Variant::StoreForgetsPostponements, Change::Postpone { .. }) => false,
            (Variant::StoreForgetsCallbacks, Change::Put(task)) => {
                task.definition.callback_of.is_none() || task.id.sequence().get() % 5 != 4
            }
            (Variant::StoreForgetsReceipts, Change::Put(task)) => {
                !task.definition.namespace.is_of_receipts()
            }
            _ => true,
        });
        if self.variant == Variant::StoreAppliesTwice {
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

    /// Another owner takes the partition: what a failover lost is lost for good.
    fn on_acquired(&mut self, seat: Seat) {
        if let Seat::Partition(partition) = seat
            && let Some(lost) = self.lost.remove(&partition)
        {
            self.excused.extend(lost.tasks);
        }
    }

    /// Returns whether nothing is promised about a task: it was in a lost batch that was not
    /// written again. An owner that has nothing to write does not notice the failover.
    pub(crate) fn is_excused(&self, id: TaskId) -> bool {
        self.excused.contains(&id) || self.lost.values().any(|lost| lost.tasks.contains(&id))
    }

    /// Returns whether nothing is promised about the deliveries of a task in a lost batch: its
    /// owner is gone too. Otherwise the owner knows what was lost.
    pub(crate) fn is_unsettled(&self, id: TaskId) -> bool {
        self.excused.contains(&id)
    }

    /// Returns the batches that the store has, in order.
    pub(crate) fn batches(&self) -> impl Iterator<Item = (PartitionId, &Batch)> {
        self.writes.iter().filter_map(|(_, write)| match write {
            StoredWrite::Applied(partition, _, batch) => Some((*partition, batch)),
            _ => None,
        })
    }

    /// Fails over to a replica that lacks all batches since an instant, and all heartbeats. Returns
    /// how many batches are lost.
    pub(crate) fn fail_over(&mut self, since: Timestamp) -> usize {
        let mut owned_since = BTreeMap::new();
        for (index, (_, writes)) in self.writes.iter().enumerate() {
            if let StoredWrite::Acquired(Seat::Partition(partition), ..) = writes {
                owned_since.insert(*partition, index);
            }
        }
        let mut count = 0;
        let mut kept = Vec::with_capacity(self.writes.len());
        for (index, (at, writes)) in std::mem::take(&mut self.writes).into_iter().enumerate() {
            match writes {
                StoredWrite::Applied(partition, _, batch)
                    if at > since && owned_since.get(&partition).is_some_and(|it| index > *it) =>
                {
                    let lost = self.lost.entry(partition).or_default();
                    count += usize::from(lost.batches.insert(batch.number));
                    lost.tasks.extend(batch.changes.iter().map(|change| change.task_id()));
                    self.disturbed.extend(&lost.tasks);
                    self.nothing_lost = false;
                }
                StoredWrite::Repaired(partition, ..)
                    if at > since && owned_since.get(&partition).is_some_and(|it| index > *it) => {}
                writes => kept.push((at, writes)),
            }
        }
        self.writes = kept;
        self.last.clear();
        self.repairs.clear();
        for (_, writes) in &self.writes {
            if let StoredWrite::Applied(partition, epoch, batch)
            | StoredWrite::Repaired(partition, epoch, batch) = writes
            {
                self.repairs.insert(*partition, (*epoch, batch.repair));
                self.last.insert(*partition, (*epoch, batch.number));
            }
        }
        self.replay();
        count
    }

    fn replay(&mut self) {
        self.memory = MemoryStore::new(self.partitions);
        let lease = self.lease;
        for (at, writes) in &self.writes {
            self.memory.set_time(*at).expect("the memory store works");
            let done = match writes {
                StoredWrite::Acquired(seat, broker, sent_at) => {
                    ready(self.memory.acquire(*seat, broker, lease, *sent_at)).map(drop)
                }
                StoredWrite::Renewed(held, sent_at) => {
                    ready(self.memory.renew(held, lease, *sent_at)).map(drop)
                }
                StoredWrite::Released(held) => ready(self.memory.release(held)),
                StoredWrite::Applied(partition, epoch, batch)
                | StoredWrite::Repaired(partition, epoch, batch) => {
                    ready(self.memory.apply(*partition, *epoch, batch.clone()))
                }
            };
            done.expect("the same writes succeeded in the same order");
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
