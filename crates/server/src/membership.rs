//! Membership: what this broker does as a member of a cluster.
//!
//! `punctual-cluster` decides. Its member sends [`Directive`]s, and [`PartitionMoves`] turns those
//! about partitions into actions. This file carries the actions out in order: it starts, extends
//! and ends owners, notifies successors and answers offers. It also publishes the topology for
//! `routing`. Results go back as [`MoveEvent`]s. `orphans` passes on the reports of deliveries
//! whose owner has moved, and `addresses` keeps webhooks away from brokers and from the store.

mod addresses;
mod orphans;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_cluster::{
    ClusterView, Directive, MemberHandle, MoveAction, MoveEvent, PartitionMoves,
};
use punctual_core::{BrokerId, Clock as _, Epoch, PartitionId, Timestamp};
use punctual_engine::{InFlight, OwnerHandle, Ownership};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::owner_runner::OwnerRunner;
use crate::peer::{PeerError, Peers};
pub(crate) use addresses::BarredAddresses;
pub(crate) use orphans::forward_orphan_reports;

/// The longest wait when nothing is due. Directives and events end the wait earlier.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Events that may wait. They are handled at once, so more than a few only wait while many
/// partitions move at the same moment; then their senders wait too.
const MOVE_EVENTS_MAX: usize = 256;
/// How long a broker that has left is remembered: longer than a broker takes to stop.
const REMEMBER_FOR: Duration = Duration::from_secs(60);

/// Sends the answer to an offer: the epoch of the new owner, if this broker takes the partition.
type AnswerSender = oneshot::Sender<Option<Epoch>>;
type MembershipEvent = MoveEvent<InFlight, AnswerSender>;

/// This broker as a member of the cluster.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) me: BrokerId,
    member: MemberHandle,
    runner: OwnerRunner,
    peers: Arc<Peers>,
    /// What [`Membership::run`] handles.
    events: mpsc::Sender<MembershipEvent>,
    lease: Duration,
    /// When each broker was last alive. A broker that leaves is no longer a member while workers
    /// still hold leases that it gave them.
    last_alive: Mutex<HashMap<BrokerId, Timestamp>>,
    leaving: AtomicBool,
    view: watch::Sender<Option<Arc<ClusterView>>>,
    skewed: watch::Sender<Option<i64>>,
    left: watch::Sender<bool>,
}

impl Membership {
    pub(crate) fn new(
        me: BrokerId,
        member: MemberHandle,
        runner: OwnerRunner,
        peers: Arc<Peers>,
        lease: Duration,
    ) -> (Arc<Self>, mpsc::Receiver<MembershipEvent>) {
        let (events, received) = mpsc::channel(MOVE_EVENTS_MAX);
        let membership = Self {
            me,
            member,
            runner,
            peers,
            events,
            lease,
            last_alive: Mutex::default(),
            leaving: AtomicBool::new(false),
            skewed: watch::Sender::new(None),
            view: watch::Sender::new(None),
            left: watch::Sender::new(false),
        };
        (Arc::new(membership), received)
    }

    /// Returns the brokers and the topology as last read; `None` before the store first answers.
    pub(crate) fn view(&self) -> Option<Arc<ClusterView>> {
        self.view.borrow().clone()
    }

    /// Returns the other brokers that are alive.
    pub(crate) fn others(&self) -> Vec<BrokerId> {
        let view = self.view();
        let present = view.iter().flat_map(|view| &view.present).map(|seen| seen.broker.clone());
        present.filter(|broker| *broker != self.me).collect()
    }

    /// Returns another broker by its address if it is alive or has left recently.
    pub(crate) fn known_peer(&self, address: &str) -> Option<BrokerId> {
        let broker = BrokerId::new(address);
        (broker != self.me && lock(&self.last_alive).contains_key(&broker)).then_some(broker)
    }

    /// Returns whether this broker is ready: a warning if it is, the reason if it is not.
    pub(crate) fn readiness(&self, now: Timestamp) -> Result<Option<String>, String> {
        if self.leaving.load(Ordering::Relaxed) {
            return Err("leaving: this broker hands its partitions over".to_owned());
        }
        let view = self.view().ok_or("not joined yet: the store has not answered")?;
        let me = view.present.iter().find(|seen| seen.broker == self.me);
        let silent_for = me.map(|seen| now.since(seen.heard_at));
        if silent_for.is_none_or(|silent_for| silent_for > self.lease) {
            return Err("the store does not answer".to_owned());
        }
        if let Some(ahead_ms) = *self.skewed.borrow() {
            return Err(format!(
                "clock_suspect: this broker's clock is {ahead_ms} ms ahead of the other brokers'; \
                 it owns no partitions until they agree"
            ));
        }
        let vacant = view.topology.vacant_count();
        Ok((vacant > 0).then(|| format!("{vacant} partitions have no owner right now")))
    }

    /// Hands all partitions over. Returns when that is done, or when it has timed out.
    pub(crate) async fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        // Fails if the member has left already.
        let _ = self.events.send(MoveEvent::Leave).await;
        let _ = self.left.subscribe().wait_for(|left| *left).await;
    }

    /// Carries out directives and moves of partitions until the member has left.
    pub(crate) async fn run(
        &self,
        mut directives: mpsc::Receiver<Directive>,
        mut events: mpsc::Receiver<MembershipEvent>,
    ) {
        let clock = &self.runner.clock;
        let mut moves = PartitionMoves::default();
        loop {
            moves.act(clock.now()).into_iter().for_each(|action| self.perform(action));
            let wait = moves.wakes_at().map_or(IDLE_MAX, |at| clock.until(at).min(IDLE_MAX));
            let event = tokio::select! {
                directive = directives.recv() => match directive {
                    None | Some(Directive::Left) => break,
                    Some(directive) => self.on_directive(directive),
                },
                event = events.recv() => event,
                _ = timeout(wait, pending::<()>()) => None,
            };
            if let Some(event) = event {
                moves.on(event, clock.now());
            }
        }
        self.runner.drop_orphans();
        self.left.send_replace(true);
    }

    /// Carries out a directive, unless it is about a partition: those are for [`PartitionMoves`].
    fn on_directive(&self, directive: Directive) -> Option<MembershipEvent> {
        match &directive {
            Directive::Publish(view) => {
                self.publish(Arc::clone(view));
                return None;
            }
            Directive::Skew(ahead_ms) => {
                self.skew(*ahead_ms);
                return None;
            }
            Directive::HandOver { partition, epoch, successor } => {
                let successor = successor.as_ref().map(BrokerId::as_str);
                tracing::info!(%partition, %epoch, successor, "hand-over started");
            }
            Directive::Drop { partition, epoch } => {
                tracing::warn!(%partition, %epoch, "lease lost");
            }
            _ => {}
        }
        Some(MoveEvent::Directive(directive))
    }

    fn perform(&self, action: MoveAction<InFlight, AnswerSender>) {
        match action {
            MoveAction::Start { partition, epoch, until, in_flight } => {
                self.start(Ownership { partition, epoch, until }, in_flight);
            }
            MoveAction::Extend { partition, epoch, until } => {
                self.handle(partition, epoch).inspect(|handle| handle.extend(until));
            }
            MoveAction::Stop { partition, epoch } => {
                let stopping = self.handle(partition, epoch).map(|handle| handle.hand_over());
                let stopping = async move { stopping?.await.ok() };
                self.send_later(async move {
                    let in_flight = stopping.await.unwrap_or_default();
                    Some(MoveEvent::Stopped { partition, epoch, in_flight })
                });
            }
            MoveAction::End { partition, epoch } => self.runner.remove(partition, epoch),
            MoveAction::Notify { partition, epoch, successor, in_flight, within } => {
                let peers = Arc::clone(&self.peers);
                self.send_later(async move {
                    let taking = peers.take(&successor, partition, epoch, &in_flight);
                    let taken = match timeout(within, taking).await {
                        Ok(taken) => taken.map_err(|error| error.to_string()),
                        Err(_) => Err("no confirmation in time".to_owned()),
                    };
                    if let Err(error) = &taken {
                        tracing::warn!(%partition, %successor, %error, "hand-over failed");
                    }
                    let taken = taken.ok();
                    Some(MoveEvent::Notified { partition, epoch, successor, taken })
                });
            }
            MoveAction::HandedOver { partition, successor, epoch, took } => {
                tracing::info!(%partition, %successor, %epoch, ?took, "hand-over done");
                self.runner.telemetry.handed_over(took);
                self.runner.owners.learn_owner(partition, successor, epoch);
            }
            // The peer may no longer wait.
            MoveAction::Answer { reply, taken } => _ = reply.send(taken),
            MoveAction::Report(event) => self.member.report(event),
        }
    }

    /// Sends the event that a future returns.
    fn send_later(&self, event: impl Future<Output = Option<MembershipEvent>> + Send + 'static) {
        let events = self.events.clone();
        tokio::spawn(async move {
            if let Some(event) = event.await {
                // Fails if the member has left.
                let _ = events.send(event).await;
            }
        });
    }

    fn start(&self, ownership: Ownership, inherited: Vec<InFlight>) {
        let Ownership { partition, epoch, .. } = ownership;
        let end = self.runner.start(ownership, inherited);
        self.send_later(async move {
            // An owner that was not started has ended. Without a failure, the broker ended it.
            if let Ok(end) = end {
                end.await?;
            }
            Some(MoveEvent::Ended { partition, epoch })
        });
    }

    /// Returns the owner of a partition if it runs here with this epoch.
    fn handle(&self, partition: PartitionId, epoch: Epoch) -> Option<OwnerHandle> {
        let owners = &self.runner.owners;
        owners.handle(partition).filter(|_| owners.epoch(partition) == Some(epoch))
    }

    fn publish(&self, view: Arc<ClusterView>) {
        self.runner.owners.update_topology(&view.topology);
        let others = view.present.iter().map(|seen| seen.broker.clone());
        self.peers.retain(&others.filter(|broker| *broker != self.me).collect::<Vec<_>>());
        self.runner.telemetry.leads(view.topology.leader.as_ref() == Some(&self.me));
        self.runner.telemetry.brokers(view.present.len());
        let now = self.runner.clock.now();
        {
            let mut last_alive = lock(&self.last_alive);
            last_alive.extend(view.present.iter().map(|seen| (seen.broker.clone(), now)));
            last_alive.retain(|_, last| now.since(*last) < REMEMBER_FOR);
        }
        self.view.send_replace(Some(view));
    }

    fn skew(&self, ahead_ms: Option<i64>) {
        match ahead_ms {
            Some(ahead_ms) => tracing::error!(
                ahead_ms,
                "clock suspect: it differs from the other brokers'; \
                 this broker gives up its partitions until they agree"
            ),
            None => tracing::info!("clock trusted: it agrees with the other brokers' again"),
        }
        self.runner.telemetry.skew(ahead_ms);
        self.skewed.send_replace(ahead_ms);
    }

    /// Takes a partition that another broker has released for this one. Returns the epoch of the
    /// new owner.
    pub(crate) async fn take(
        &self,
        partition: PartitionId,
        before: Epoch,
        in_flight: Vec<InFlight>,
    ) -> Result<Epoch, PeerError> {
        let (reply, taken) = oneshot::channel();
        let offer = MoveEvent::Offered { partition, before, in_flight, reply };
        self.events.send(offer).await.map_err(|_| PeerError::NotMine)?;
        taken.await.ok().flatten().ok_or(PeerError::NotMine)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update is a single step, so the value is consistent even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
