//! The shell: runs a member over a store until it has left.
//!
//! In: a store, a clock, and what the broker says through a [`MemberHandle`]. Out: [`Directive`]s. Every question to the store is a task of
//! its own with a time limit, whose end comes back as an event.
//! Bound: at most one question per seat is under way, so there are no more than partitions, and a few. Orders wait in a
//! channel with a bound; a broker that does not take them holds up the member, its leases are no longer renewed,
//! and its owners stand still.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Clock, Epoch, PartitionId, Timestamp};
use punctual_store::{LeaseStore, MembershipStore, StoreError};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::event::{Directive, MemberAction, MemberEvent};
use crate::member::Member;
use crate::terms::MemberConfig;

/// How long the shell waits when nothing is due: it wakes by events, this is only a bound.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Orders that wait for the broker, besides four per partition.
const ORDERS_SPARE: usize = 64;

/// The door to a member. Clones lead to the same one. What is said to one that has left is lost.
#[derive(Debug, Clone)]
pub struct MemberHandle {
    // Unbounded by type: a broker says a few words per order, and the rest are answers to the member's own questions.
    events: mpsc::UnboundedSender<MemberEvent>,
}

impl MemberHandle {
    /// Nothing of this owner is on its way any more. See [`Directive::HandOver`].
    pub fn quiet(&self, partition: PartitionId, epoch: Epoch) {
        let _ = self.events.send(MemberEvent::Quiet { partition, epoch });
    }

    /// The successor could not be told. See [`Directive::Released`].
    pub fn not_told(&self, partition: PartitionId, epoch: Epoch) {
        let _ = self.events.send(MemberEvent::HandOverFailed { partition, epoch });
    }

    /// The successor was told. See [`Directive::Released`].
    pub fn handed_over(&self, partition: PartitionId, epoch: Epoch) {
        let _ = self.events.send(MemberEvent::HandedOver { partition, epoch });
    }

    /// An owner has come to its end by itself.
    pub fn ended(&self, partition: PartitionId, epoch: Epoch) {
        let _ = self.events.send(MemberEvent::Ended { partition, epoch });
    }

    /// Another broker has let go of a partition for us. An [`Directive::Start`] follows, unless somebody was quicker or we
    /// want none.
    pub fn offered(&self, partition: PartitionId) {
        let _ = self.events.send(MemberEvent::Offered { partition });
    }

    /// Gives everything back. [`Directive::Left`] follows within two leases.
    pub fn leave(&self) {
        let _ = self.events.send(MemberEvent::Leave);
    }
}

/// Runs a member over a store until it has left, or nobody takes its orders. To be called on a runtime.
pub fn spawn<S, C>(
    terms: MemberConfig,
    store: Arc<S>,
    clock: Arc<C>,
) -> (MemberHandle, mpsc::Receiver<Directive>)
where
    S: LeaseStore + MembershipStore,
    C: Clock,
{
    let (events, received) = mpsc::unbounded_channel();
    let bound = usize::from(terms.partitions.count()) * 4 + ORDERS_SPARE;
    let (orders, given) = mpsc::channel(bound);
    let executor = Executor { store, terms: terms.clone(), events: events.clone() };
    let member = Member::new(terms, clock.now());
    tokio::spawn(run(member, received, orders, executor, clock));
    (MemberHandle { events }, given)
}

async fn run<S: LeaseStore + MembershipStore, C: Clock>(
    mut member: Member,
    mut received: mpsc::UnboundedReceiver<MemberEvent>,
    orders: mpsc::Sender<Directive>,
    executor: Executor<S>,
    clock: Arc<C>,
) {
    loop {
        let now = clock.now();
        for action in member.act(now) {
            let MemberAction::Directive(order) = action else {
                executor.perform(action, now);
                continue;
            };
            let last = order == Directive::Left;
            if orders.send(order).await.is_err() || last {
                return;
            }
        }
        let wait = member.wakes_at().map_or(IDLE_MAX, |at| clock.until(at).min(IDLE_MAX));
        let Ok(event) = timeout(wait, received.recv()).await else { continue };
        // The channel is never closed: the executor hold a sender.
        let Some(event) = event else { return };
        member.on(event, clock.now());
        while let Ok(event) = received.try_recv() {
            member.on(event, clock.now());
        }
    }
}

/// What asks the store.
struct Executor<S> {
    store: Arc<S>,
    terms: MemberConfig,
    events: mpsc::UnboundedSender<MemberEvent>,
}

impl<S: LeaseStore + MembershipStore> Executor<S> {
    /// `now` is the time before the question.
    fn perform(&self, action: MemberAction, now: Timestamp) {
        let store = Arc::clone(&self.store);
        let (me, ttl) = (self.terms.me.clone(), self.terms.lease);
        let patience = self.terms.patience();
        match action {
            MemberAction::Heartbeat(presence) => self.start(async move {
                MemberEvent::Heard(within(patience, store.heartbeat(&presence, ttl)).await)
            }),
            MemberAction::Acquire(seat) => self.start(async move {
                MemberEvent::Acquired(
                    seat,
                    within(patience, store.acquire(seat, &me, ttl, now)).await,
                )
            }),
            MemberAction::Renew(lease) => self.start(async move {
                MemberEvent::Renewed(
                    lease.seat,
                    within(patience, store.renew(&lease, ttl, now)).await,
                )
            }),
            MemberAction::Release(lease) => self.start(async move {
                MemberEvent::Released(lease.seat, within(patience, store.release(&lease)).await)
            }),
            MemberAction::Propose(lease, assignment) => self.start(async move {
                MemberEvent::Proposed(within(patience, store.propose(&lease, &assignment)).await)
            }),
            MemberAction::Leave => self.start(async move {
                MemberEvent::Deregistered(within(patience, store.leave(&me)).await)
            }),
            MemberAction::Directive(_) => {}
        }
    }

    fn start(&self, question: impl Future<Output = MemberEvent> + Send + 'static) {
        let events = self.events.clone();
        tokio::spawn(async move {
            // A member that has left wants to know nothing any more.
            let _ = events.send(question.await);
        });
    }
}

/// Whether what took too long was done is not known.
async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(StoreError::Unavailable(Box::new(elapsed))),
    }
}
