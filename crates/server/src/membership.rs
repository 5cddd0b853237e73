//! Membership: what this broker does as a member of a cluster.
//!
//! `punctual-cluster` decides which broker owns which partition and sends [`Directive`]s. This file
//! runs them: it starts owners, extends their leases, hands them over and ends them, and it
//! publishes the topology for `routing`. Results go back to the member.
//!
//! At most one owner of a partition runs on this broker. Deliveries that an earlier owner has in
//! flight are passed to the next owner, here or on another broker, before that owner fires.
//! Reports of deliveries whose owner has moved are passed on by `orphans`. `addresses` keeps
//! webhooks away from brokers and from the store.

mod addresses;
mod orphans;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_cluster::{ClusterView, Directive, MemberHandle};
use punctual_core::{BrokerId, Clock as _, Epoch, PartitionId, Timestamp};
use punctual_engine::{InFlight, OrphanReports, OwnerConfig, Ownership, spawn};
use punctual_store::StoreError;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::clock::SystemClock;
use crate::courier::{Couriers, Hub};
use crate::peer::{PeerError, Peers};
use crate::routing::Owners;
use crate::store::Store;
use crate::telemetry::Telemetry;
pub(crate) use addresses::BarredAddresses;
pub(crate) use orphans::forward_orphan_reports;

/// How long the successor of a partition may take to confirm a hand-over. The lease is free by
/// then, so the successor can take the partition even if its confirmation is late.
const TAKE_MAX: Duration = Duration::from_secs(1);
/// How long a broker that has left is remembered: longer than a broker takes to stop.
const REMEMBER_FOR: Duration = Duration::from_secs(60);

/// This broker as a member of the cluster.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) me: BrokerId,
    member: MemberHandle,
    deps: OwnerDeps,
    peers: Arc<Peers>,
    /// Deliveries in flight of partitions that other brokers have offered to this one. An offer
    /// that is not taken within [`TAKE_MAX`] is dropped.
    offered: Mutex<HashMap<PartitionId, Vec<InFlight>>>,
    /// Partitions that this broker hands over.
    departing: Mutex<HashMap<PartitionId, Departing>>,
    lease: Duration,
    /// When each broker was last alive. A broker that leaves is no longer a member while workers
    /// still hold leases that it gave them.
    last_alive: Mutex<HashMap<BrokerId, Timestamp>>,
    leaving: AtomicBool,
    view: watch::Sender<Option<Arc<ClusterView>>>,
    skewed: watch::Sender<Option<i64>>,
    left: watch::Sender<bool>,
}

/// What owners need to run.
#[derive(Debug)]
pub(crate) struct OwnerDeps {
    pub(crate) owners: Arc<Owners>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) store: Arc<Store>,
    pub(crate) couriers: Arc<Couriers>,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) telemetry: Telemetry,
    pub(crate) config: OwnerConfig,
    /// [`OrphanReports::none`] once the broker has left, when no more owners start.
    pub(crate) orphans: Mutex<OrphanReports>,
}

/// A partition that this broker hands over.
#[derive(Debug, Clone)]
struct Departing {
    epoch: Epoch,
    in_flight: Vec<InFlight>,
    since: Timestamp,
}

impl Membership {
    pub(crate) fn new(
        me: BrokerId,
        member: MemberHandle,
        deps: OwnerDeps,
        peers: Arc<Peers>,
        lease: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            me,
            member,
            deps,
            peers,
            lease,
            last_alive: Mutex::default(),
            leaving: AtomicBool::new(false),
            skewed: watch::Sender::new(None),
            offered: Mutex::default(),
            departing: Mutex::default(),
            view: watch::Sender::new(None),
            left: watch::Sender::new(false),
        })
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
        self.member.leave();
        let _ = self.left.subscribe().wait_for(|left| *left).await;
    }

    /// Runs directives until the member has left.
    pub(crate) async fn run_directives(
        self: &Arc<Self>,
        mut directives: mpsc::Receiver<Directive>,
    ) {
        while let Some(directive) = directives.recv().await {
            match directive {
                Directive::Start { partition, epoch, until } => self.start(partition, epoch, until),
                Directive::Extend { partition, epoch, until } => {
                    self.extend(partition, epoch, until)
                }
                Directive::HandOver { partition, epoch, successor } => {
                    let successor = successor.as_ref().map(BrokerId::as_str);
                    tracing::info!(%partition, %epoch, successor, "hand-over started");
                    tokio::spawn(Arc::clone(self).quiesce(partition, epoch));
                }
                Directive::Released { partition, epoch, successor } => {
                    tokio::spawn(Arc::clone(self).hand_over(partition, epoch, successor));
                }
                Directive::Drop { partition, epoch } => self.drop_partition(partition, epoch),
                Directive::Publish(view) => self.publish(view),
                Directive::Skew(ahead_ms) => self.skew(ahead_ms),
                Directive::Left => break,
            }
        }
        *lock(&self.deps.orphans) = OrphanReports::none();
        self.left.send_replace(true);
    }

    fn start(self: &Arc<Self>, partition: PartitionId, epoch: Epoch, until: Timestamp) {
        let OwnerDeps { owners, hub, store, couriers, clock, telemetry, config, orphans, .. } =
            &self.deps;
        // After a failed hand-over the deliveries in flight are still ours, unless another broker
        // has owned the partition since.
        let departing = lock(&self.departing).remove(&partition);
        let kept = departing.filter(|departing| departing.epoch.next() == Some(epoch));
        let kept = kept.map(|departing| departing.in_flight);
        let inherited = lock(&self.offered).remove(&partition).or(kept).unwrap_or_default();
        let ownership = Ownership { partition, epoch, until };
        let in_flight = inherited.len();
        let (store, couriers, clock) = (Arc::clone(store), Arc::clone(couriers), Arc::clone(clock));
        let orphans = lock(orphans).clone();
        match spawn(ownership, inherited, store, couriers, clock, *config, orphans) {
            Ok((handle, end)) => {
                tracing::info!(%partition, %epoch, in_flight, "owner started");
                owners.insert(partition, epoch, handle.clone());
                hub.serve(partition, handle);
                telemetry.holds(partition, Some(epoch));
                let membership = Arc::clone(self);
                tokio::spawn(async move {
                    if let Ok(error) = end.await {
                        membership.owner_ended(partition, epoch, &error);
                    }
                });
            }
            Err(error) => {
                tracing::error!(%partition, %epoch, %error, "owner not started");
                self.member.ended(partition, epoch);
            }
        }
    }

    fn extend(&self, partition: PartitionId, epoch: Epoch, until: Timestamp) {
        if self.deps.owners.epoch(partition) == Some(epoch)
            && let Some(handle) = self.deps.owners.handle(partition)
        {
            handle.extend(until);
        }
    }

    /// Handles the end of an owner that stopped because of an error.
    fn owner_ended(&self, partition: PartitionId, epoch: Epoch, error: &StoreError) {
        tracing::warn!(%partition, %epoch, %error, "owner ended");
        if matches!(error, StoreError::Fenced { .. }) {
            self.deps.telemetry.stale_write();
        }
        self.remove_owner(partition, epoch);
        self.member.ended(partition, epoch);
    }

    /// Stops an owner, so that its lease can be released, and keeps its deliveries in flight.
    async fn quiesce(self: Arc<Self>, partition: PartitionId, epoch: Epoch) {
        let since = self.deps.clock.now();
        let handle = self.deps.owners.handle(partition);
        let in_flight = match handle.filter(|_| self.deps.owners.epoch(partition) == Some(epoch)) {
            // An owner that has ended in the meantime has nothing in flight.
            Some(handle) => handle.hand_over().await.unwrap_or_default(),
            None => Vec::new(),
        };
        self.remove_owner(partition, epoch);
        lock(&self.departing).insert(partition, Departing { epoch, in_flight, since });
        self.member.quiet(partition, epoch);
    }

    /// Notifies the successor of a partition and passes it the deliveries in flight.
    async fn hand_over(
        self: Arc<Self>,
        partition: PartitionId,
        epoch: Epoch,
        successor: Option<BrokerId>,
    ) {
        // The entry stays until the successor has confirmed.
        let departing = lock(&self.departing).get(&partition).cloned();
        let (Some(successor), Some(departing)) =
            (successor, departing.filter(|it| it.epoch == epoch))
        else {
            return self.member.handed_over(partition, epoch);
        };
        let taking = self.peers.take(&successor, partition, epoch, &departing.in_flight);
        let error = match timeout(TAKE_MAX, taking).await {
            Ok(Ok(taken)) => {
                lock(&self.departing).retain(|of, it| (*of, it.epoch) != (partition, epoch));
                self.deps.owners.learn_owner(partition, successor.clone(), taken);
                let took = self.deps.clock.now().since(departing.since);
                self.deps.telemetry.handed_over(took);
                tracing::info!(%partition, %successor, epoch = %taken, ?took, "hand-over done");
                return self.member.handed_over(partition, epoch);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no confirmation in time".to_owned(),
        };
        tracing::warn!(%partition, %successor, %error, "hand-over failed");
        self.member.hand_over_failed(partition, epoch);
    }

    /// Ends an owner whose lease is lost. Another broker may own the partition by now.
    fn drop_partition(&self, partition: PartitionId, epoch: Epoch) {
        tracing::warn!(%partition, %epoch, "lease lost");
        lock(&self.departing).remove(&partition);
        self.remove_owner(partition, epoch);
    }

    fn remove_owner(&self, partition: PartitionId, epoch: Epoch) {
        if let Some(handle) = self.deps.owners.remove(partition, epoch) {
            self.deps.hub.forget(partition);
            self.deps.telemetry.holds(partition, None);
            handle.end();
        }
    }

    fn publish(&self, view: Arc<ClusterView>) {
        self.deps.owners.update_topology(&view.topology);
        let others = view.present.iter().map(|seen| seen.broker.clone());
        self.peers.retain(&others.filter(|broker| *broker != self.me).collect::<Vec<_>>());
        self.deps.telemetry.leads(view.topology.leader.as_ref() == Some(&self.me));
        self.deps.telemetry.brokers(view.present.len());
        let now = self.deps.clock.now();
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
        self.deps.telemetry.skew(ahead_ms);
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
        if self.leaving.load(Ordering::Relaxed) {
            return Err(PeerError::NotMine);
        }
        lock(&self.offered).insert(partition, in_flight);
        self.member.offered(partition);
        let owners = &self.deps.owners;
        let mut changes = owners.changes().ok_or(PeerError::NotMine)?;
        let taken = |_: &u64| owners.epoch(partition).is_some_and(|epoch| epoch > before);
        let _ = timeout(TAKE_MAX, changes.wait_for(taken)).await;
        // An owner that starts later must not inherit this: it would be out of date.
        lock(&self.offered).remove(&partition);
        owners.epoch(partition).filter(|epoch| *epoch > before).ok_or(PeerError::NotMine)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update is a single step, so the value is consistent even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
