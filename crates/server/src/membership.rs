//! One of many: what this broker does as a member of a cluster.
//!
//! In: orders of `punctual-cluster`, and what other brokers say. Out: owners that start here, stand still, are handed over and
//! end; the topology for whoever forwards; words back to the member. `cluster` decides who holds what and knows no owners,
//! `engine` owns and knows no cluster: here they meet.
//! Invariant: of a partition there is at most one owner here, and what an earlier one has under way is with the next one, here or
//! elsewhere, before that one fires.
//! Bound: partitions. What is offered and not taken within [`TAKE_MAX`] is forgotten.

mod orphans;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_cluster::{ClusterView, Directive, MemberHandle};
use punctual_core::{BrokerId, Clock as _, Epoch, PartitionId, Timestamp};
use punctual_engine::{InFlight, OrphanReports, OwnerConfig, Ownership, spawn};
use punctual_store::StoreError;
use tokio::net::lookup_host;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::clock::SystemClock;
use crate::courier::{Couriers, Guard, Hub};
use crate::peer::{PeerError, Peers};
use crate::routing::Owners;
use crate::store::Store;
use crate::telemetry::Telemetry;
pub(crate) use orphans::carry_strays;

/// How long the successor of a partition may take to say that it has it. The partition is its own by then, with or without a word.
const TAKE_MAX: Duration = Duration::from_secs(1);
/// How long a broker is remembered that is no longer there: longer than one takes to stop.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// A broker as a member.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) me: BrokerId,
    member: MemberHandle,
    rooms: Rooms,
    peers: Arc<Peers>,
    /// Under way elsewhere, of partitions that are offered to this broker.
    offered: Mutex<HashMap<PartitionId, Vec<InFlight>>>,
    /// Under way here, of partitions that this broker lets go of.
    parting: Mutex<HashMap<PartitionId, Parting>>,
    lease: Duration,
    /// Who was there, and when last: one that is leaving is off the roll before its last leases are over.
    known: Mutex<HashMap<BrokerId, Timestamp>>,
    leaving: AtomicBool,
    view: watch::Sender<Option<Arc<ClusterView>>>,
    skewed: watch::Sender<Option<i64>>,
    left: watch::Sender<bool>,
}

/// What owners are run with.
#[derive(Debug)]
pub(crate) struct Rooms {
    pub(crate) owners: Arc<Owners>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) store: Arc<Store>,
    pub(crate) couriers: Arc<Couriers>,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) telemetry: Telemetry,
    pub(crate) guard: Guard,
    pub(crate) terms: OwnerConfig,
    /// Nowhere, once the broker has left: no owner starts any more.
    pub(crate) strays: Mutex<OrphanReports>,
}

#[derive(Debug, Clone)]
struct Parting {
    epoch: Epoch,
    flights: Vec<InFlight>,
    since: Timestamp,
}

impl Membership {
    pub(crate) fn new(
        me: BrokerId,
        member: MemberHandle,
        rooms: Rooms,
        peers: Arc<Peers>,
        lease: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            me,
            member,
            rooms,
            peers,
            lease,
            known: Mutex::default(),
            leaving: AtomicBool::new(false),
            skewed: watch::Sender::new(None),
            offered: Mutex::default(),
            parting: Mutex::default(),
            view: watch::Sender::new(None),
            left: watch::Sender::new(false),
        })
    }

    /// Who is there and who holds what, as far as is known; nothing before the first answer of the store.
    pub(crate) fn view(&self) -> Option<Arc<ClusterView>> {
        self.view.borrow().clone()
    }

    /// All other brokers that are there.
    pub(crate) fn others(&self) -> Vec<BrokerId> {
        let view = self.view();
        let present = view.iter().flat_map(|view| &view.present).map(|seen| seen.broker.clone());
        present.filter(|broker| *broker != self.me).collect()
    }

    /// Another broker by its address, if it is there or was until a moment ago.
    pub(crate) fn known(&self, address: &str) -> Option<BrokerId> {
        let broker = BrokerId::new(address);
        (broker != self.me && lock(&self.known).contains_key(&broker)).then_some(broker)
    }

    /// Whether this broker can do its work: what to look at although it can, or why it cannot.
    pub(crate) fn standing(&self, now: Timestamp) -> Result<Option<String>, String> {
        if self.leaving.load(Ordering::Relaxed) {
            return Err("leaving: it hands its partitions over".to_owned());
        }
        let view = self.view().ok_or("it has not joined yet: the store has not answered")?;
        let me = view.present.iter().find(|seen| seen.broker == self.me);
        let heard = me.map(|seen| now.since(seen.heard_at));
        if heard.is_none_or(|ago| ago > self.lease) {
            return Err("the store does not answer".to_owned());
        }
        if let Some(ahead_ms) = *self.skewed.borrow() {
            return Err(format!(
                "clock_suspect: its clock is {ahead_ms} ms ahead of the others' and it holds no partitions"
            ));
        }
        let vacant = view.topology.vacant_count();
        Ok((vacant > 0).then(|| format!("{vacant} partitions have no owner at the moment")))
    }

    /// Gives everything back. Ends when all is given back, or cannot be.
    pub(crate) async fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.member.leave();
        let _ = self.left.subscribe().wait_for(|left| *left).await;
    }

    /// Does as it is told, until the member has left.
    pub(crate) async fn obey(self: &Arc<Self>, mut orders: mpsc::Receiver<Directive>) {
        while let Some(order) = orders.recv().await {
            match order {
                Directive::Start { partition, epoch, until } => self.start(partition, epoch, until),
                Directive::Extend { partition, epoch, until } => {
                    self.extend(partition, epoch, until)
                }
                Directive::HandOver { partition, epoch, successor } => {
                    tracing::info!(%partition, %epoch, successor = successor.as_ref().map(BrokerId::as_str), "handing over");
                    tokio::spawn(Arc::clone(self).quieten(partition, epoch));
                }
                Directive::Released { partition, epoch, successor } => {
                    tokio::spawn(Arc::clone(self).hand_over(partition, epoch, successor));
                }
                Directive::Drop { partition, epoch } => self.lose(partition, epoch),
                Directive::Publish(view) => self.publish(view),
                Directive::Skew(ahead_ms) => self.skew(ahead_ms),
                Directive::Left => break,
            }
        }
        *lock(&self.rooms.strays) = OrphanReports::none();
        self.left.send_replace(true);
    }

    fn start(self: &Arc<Self>, partition: PartitionId, epoch: Epoch, until: Timestamp) {
        let Rooms { owners, hub, store, couriers, clock, telemetry, terms, strays, .. } =
            &self.rooms;
        // What could not be told to an successor is still ours, if nobody had the partition in between.
        let parting = lock(&self.parting).remove(&partition);
        let kept = parting.filter(|parting| parting.epoch.next() == Some(epoch));
        let kept = kept.map(|parting| parting.flights);
        let flights = lock(&self.offered).remove(&partition).or(kept).unwrap_or_default();
        let ownership = Ownership { partition, epoch, until };
        let under_way = flights.len();
        let (store, couriers, clock) = (Arc::clone(store), Arc::clone(couriers), Arc::clone(clock));
        let strays = lock(strays).clone();
        match spawn(ownership, flights, store, couriers, clock, *terms, strays) {
            Ok((handle, end)) => {
                tracing::info!(%partition, %epoch, under_way, "owner started");
                owners.start(partition, epoch, handle.clone());
                hub.serve(partition, handle);
                telemetry.holds(partition, Some(epoch));
                let membership = Arc::clone(self);
                tokio::spawn(async move {
                    if let Ok(error) = end.await {
                        membership.ended(partition, epoch, &error);
                    }
                });
            }
            Err(error) => {
                tracing::error!(%partition, %error, "cannot start an owner");
                self.member.ended(partition, epoch);
            }
        }
    }

    fn extend(&self, partition: PartitionId, epoch: Epoch, until: Timestamp) {
        if self.rooms.owners.epoch(partition) == Some(epoch)
            && let Some(handle) = self.rooms.owners.handle(partition)
        {
            handle.extend(until);
        }
    }

    /// An owner has stopped by itself.
    fn ended(&self, partition: PartitionId, epoch: Epoch, error: &StoreError) {
        tracing::warn!(%partition, %epoch, %error, "an owner ended");
        if matches!(error, StoreError::Fenced { .. }) {
            self.rooms.telemetry.stale_write();
        }
        self.forget(partition, epoch);
        self.member.ended(partition, epoch);
    }

    /// Brings an owner to rest, so that its lease can be given back.
    async fn quieten(self: Arc<Self>, partition: PartitionId, epoch: Epoch) {
        let since = self.rooms.clock.now();
        let handle = self.rooms.owners.handle(partition);
        let flights = match handle.filter(|_| self.rooms.owners.epoch(partition) == Some(epoch)) {
            // One that has ended meanwhile has nothing under way.
            Some(handle) => handle.hand_over().await.unwrap_or_default(),
            None => Vec::new(),
        };
        self.forget(partition, epoch);
        lock(&self.parting).insert(partition, Parting { epoch, flights, since });
        self.member.quiet(partition, epoch);
    }

    /// Tells the successor of a partition, with what is under way.
    async fn hand_over(
        self: Arc<Self>,
        partition: PartitionId,
        epoch: Epoch,
        successor: Option<BrokerId>,
    ) {
        // It stays here until the successor has it.
        let parting = lock(&self.parting).get(&partition).cloned();
        let (Some(successor), Some(parting)) = (successor, parting.filter(|it| it.epoch == epoch))
        else {
            return self.member.handed_over(partition, epoch);
        };
        let taking = self.peers.take(&successor, partition, epoch, &parting.flights);
        let error = match timeout(TAKE_MAX, taking).await {
            Ok(Ok(taken)) => {
                lock(&self.parting).retain(|of, it| (*of, it.epoch) != (partition, epoch));
                self.rooms.owners.note(partition, successor.clone(), taken);
                let took = self.rooms.clock.now().since(parting.since);
                self.rooms.telemetry.handed_over(took);
                tracing::info!(%partition, %successor, epoch = %taken, ?took, "handed over");
                return self.member.handed_over(partition, epoch);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it takes long".to_owned(),
        };
        tracing::warn!(%partition, %successor, %error, "the successor was not told");
        self.member.not_told(partition, epoch);
    }

    /// The lease is lost: whoever has it now decides.
    fn lose(&self, partition: PartitionId, epoch: Epoch) {
        tracing::warn!(%partition, %epoch, "lost");
        lock(&self.parting).remove(&partition);
        self.forget(partition, epoch);
    }

    fn forget(&self, partition: PartitionId, epoch: Epoch) {
        if let Some(handle) = self.rooms.owners.end(partition, epoch) {
            self.rooms.hub.forget(partition);
            self.rooms.telemetry.holds(partition, None);
            handle.end();
        }
    }

    fn publish(&self, view: Arc<ClusterView>) {
        self.rooms.owners.publish(&view.topology);
        let others = view.present.iter().map(|seen| seen.broker.clone());
        self.peers.retain(&others.filter(|broker| *broker != self.me).collect::<Vec<_>>());
        self.rooms.telemetry.leads(view.topology.leader.as_ref() == Some(&self.me));
        self.rooms.telemetry.brokers(view.present.len());
        let before = self.others();
        let now = self.rooms.clock.now();
        {
            let mut known = lock(&self.known);
            known.extend(view.present.iter().map(|seen| (seen.broker.clone(), now)));
            known.retain(|_, last| now.since(*last) < KNOWN_FOR);
        }
        self.view.send_replace(Some(view));
        let others = self.others();
        if others != before {
            let guard = self.rooms.guard.clone();
            let others: Vec<_> = others.iter().map(|other| other.as_str().to_owned()).collect();
            tokio::spawn(async move { guard.bar_brokers(addresses(&others).await) });
        }
    }

    fn skew(&self, ahead_ms: Option<i64>) {
        match ahead_ms {
            Some(ahead_ms) => tracing::error!(
                ahead_ms,
                "clock_suspect: this broker's clock differs from the others'; it gives up its partitions until they agree"
            ),
            None => tracing::info!("this broker's clock agrees with the others' again"),
        }
        self.rooms.telemetry.skew(ahead_ms);
        self.skewed.send_replace(ahead_ms);
    }

    /// Another broker has let go of a partition for this one. Out: the epoch under which this one has it.
    pub(crate) async fn take(
        &self,
        partition: PartitionId,
        before: Epoch,
        flights: Vec<InFlight>,
    ) -> Result<Epoch, PeerError> {
        if self.leaving.load(Ordering::Relaxed) {
            return Err(PeerError::NotMine);
        }
        lock(&self.offered).insert(partition, flights);
        self.member.offered(partition);
        let owners = &self.rooms.owners;
        let mut changes = owners.changes().ok_or(PeerError::NotMine)?;
        let taken = |_: &u64| owners.epoch(partition).is_some_and(|epoch| epoch > before);
        let _ = timeout(TAKE_MAX, changes.wait_for(taken)).await;
        // What nobody has taken by now would be out of date when somebody does.
        lock(&self.offered).remove(&partition);
        owners.epoch(partition).filter(|epoch| *epoch > before).ok_or(PeerError::NotMine)
    }
}

/// The addresses that names stand for; of a name that means nothing there is none.
pub(crate) async fn addresses(names: &[String]) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for name in names {
        match lookup_host(name).await {
            Ok(found) => addresses.extend(found),
            Err(error) => tracing::warn!(%name, %error, "cannot look this address up"),
        }
    }
    addresses
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they guard is consistent between any two steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
