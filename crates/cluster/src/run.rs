//! Runs a member over a store until it has left.
//!
//! Every request to the store runs in a task of its own, with a timeout, and its answer comes back
//! as an event. At most one request per seat is in flight, so there are not many more than
//! partitions. Directives are sent through a bounded channel: if the broker does not take them, the
//! member stops, its leases are no longer renewed, and its owners pause.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Clock, Timestamp};
use punctual_store::{LeaseStore, MembershipStore, StoreError};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::config::MemberConfig;
use crate::event::{Directive, MemberAction, MemberEvent};
use crate::member::Member;

/// The longest wait when nothing is due. Events end the wait earlier; this is only a bound.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Directives that may wait for the broker, in addition to four per partition.
const DIRECTIVES_SPARE: usize = 64;

/// Reports events to a member. Clones report to the same member. Events for a member that has left
/// are dropped.
#[derive(Debug, Clone)]
pub struct MemberHandle {
    // Unbounded, because a broker reports a few events per directive, and the rest are answers to
    // the member's own requests.
    events: mpsc::UnboundedSender<MemberEvent>,
}

impl MemberHandle {
    /// Reports what has become of a directive, an offer of another broker, or that the member is
    /// to leave.
    pub fn report(&self, event: MemberEvent) {
        let _ = self.events.send(event);
    }
}

/// Runs a member over a store until it has left, or the receiver of directives is dropped. Must be
/// called on a runtime.
pub fn spawn<S, C>(
    config: MemberConfig,
    store: Arc<S>,
    clock: Arc<C>,
) -> (MemberHandle, mpsc::Receiver<Directive>)
where
    S: LeaseStore + MembershipStore,
    C: Clock,
{
    let (events, received) = mpsc::unbounded_channel();
    let bound = usize::from(config.partitions.count()) * 4 + DIRECTIVES_SPARE;
    let (directives, given) = mpsc::channel(bound);
    let executor = StoreExecutor { store, config: config.clone(), events: events.clone() };
    let member = Member::new(config, clock.now());
    tokio::spawn(run(member, received, directives, executor, clock));
    (MemberHandle { events }, given)
}

async fn run<S: LeaseStore + MembershipStore, C: Clock>(
    mut member: Member,
    mut received: mpsc::UnboundedReceiver<MemberEvent>,
    directives: mpsc::Sender<Directive>,
    executor: StoreExecutor<S>,
    clock: Arc<C>,
) {
    loop {
        let now = clock.now();
        for action in member.act(now) {
            let MemberAction::Directive(directive) = action else {
                executor.perform(action, now);
                continue;
            };
            let last = directive == Directive::Left;
            if directives.send(directive).await.is_err() || last {
                return;
            }
        }
        let wait = member.wakes_at().map_or(IDLE_MAX, |at| clock.until(at).min(IDLE_MAX));
        let Ok(event) = timeout(wait, received.recv()).await else { continue };
        // The channel is never closed: the executor holds a sender.
        let Some(event) = event else { return };
        member.on(event, clock.now());
        while let Ok(event) = received.try_recv() {
            member.on(event, clock.now());
        }
    }
}

/// Sends requests to the store.
struct StoreExecutor<S> {
    store: Arc<S>,
    config: MemberConfig,
    events: mpsc::UnboundedSender<MemberEvent>,
}

impl<S: LeaseStore + MembershipStore> StoreExecutor<S> {
    /// Starts a request; `now` is the time before it is sent.
    fn perform(&self, action: MemberAction, now: Timestamp) {
        let store = Arc::clone(&self.store);
        let (me, ttl) = (self.config.me.clone(), self.config.lease);
        let store_timeout = self.config.store_timeout();
        match action {
            MemberAction::Heartbeat(heartbeat) => self.start(async move {
                MemberEvent::HeartbeatAnswered(
                    within(store_timeout, store.heartbeat(&heartbeat, ttl)).await,
                )
            }),
            MemberAction::Acquire(seat) => self.start(async move {
                MemberEvent::Acquired(
                    seat,
                    within(store_timeout, store.acquire(seat, &me, ttl, now)).await,
                )
            }),
            MemberAction::Renew(lease) => self.start(async move {
                MemberEvent::Renewed(
                    lease.seat,
                    within(store_timeout, store.renew(&lease, ttl, now)).await,
                )
            }),
            MemberAction::Release(lease) => self.start(async move {
                MemberEvent::Released(
                    lease.seat,
                    within(store_timeout, store.release(&lease)).await,
                )
            }),
            MemberAction::Propose(lease, assignment) => self.start(async move {
                MemberEvent::Proposed(
                    within(store_timeout, store.propose(&lease, &assignment)).await,
                )
            }),
            MemberAction::Leave => self.start(async move {
                MemberEvent::Deregistered(within(store_timeout, store.leave(&me)).await)
            }),
            MemberAction::Directive(_) => {}
        }
    }

    fn start(&self, request: impl Future<Output = MemberEvent> + Send + 'static) {
        let events = self.events.clone();
        tokio::spawn(async move {
            // A member that has left ignores answers.
            let _ = events.send(request.await);
        });
    }
}

/// Limits the time of a request. After a timeout it is not known whether the store has executed it.
async fn within<T>(
    store_timeout: Duration,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout(store_timeout, answer).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(StoreError::Unavailable(Box::new(elapsed))),
    }
}
