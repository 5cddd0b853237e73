//! Owners: where the owner of each partition is, and how it is asked, here or at another broker.
//!
//! In: commands for a partition. Out: the answers of its owner. A broker on a store of its own has all owners here and asks them
//! directly. One of many forwards what is not its own to the broker that the topology names; while a partition is between two owners
//! its calls wait, a little, for the one who comes.
//! Invariant: a command is asked again only if it is certain that nothing was done. A call waits no longer than [`ASK_MAX`] for somebody to ask.
//! Next door: `peer` (how other brokers are asked), `cluster` (who says which owners are here).

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use punctual_core::{
    BrokerId, Epoch, Namespace, PartitionId, Partitions, Task, TaskKey, Topology, partition_of,
};
use punctual_engine::{
    Cancelled, Command, EngineError, Gauges, OwnerHandle, Replies, Reply, Report, ScheduleCommand,
    Scheduled, Subject,
};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::peer::{PeerError, Peers};
use crate::telemetry::{Forwarded, Telemetry};

/// How long a call may wait for the owner who comes: longer than a hand-over, shorter than callers are patient. A crash costs a lease, which may be longer.
const ASK_MAX: Duration = Duration::from_secs(3);
/// How long a call may take altogether where the store is shared: it may be away for longer than anybody waits.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long at most until it is looked again who owns a partition, when nobody says that it has changed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The owners of all partitions.
#[derive(Debug)]
pub(crate) struct Owners {
    partitions: Partitions,
    /// Those that are here.
    here: RwLock<Here>,
    /// Tasks without a name go round.
    next: AtomicUsize,
    /// The other brokers, if there can be some.
    others: Option<Others>,
}

/// Owners of this broker, by partition and in a row.
#[derive(Debug, Default)]
struct Here {
    by_partition: Vec<Option<Local>>,
    row: Vec<PartitionId>,
}

#[derive(Debug, Clone)]
struct Local {
    epoch: Epoch,
    handle: OwnerHandle,
}

#[derive(Debug)]
struct Others {
    me: BrokerId,
    peers: Arc<Peers>,
    telemetry: Telemetry,
    topology: Mutex<Topology>,
    /// Counts changes, so that whoever waits for one sees it.
    changes: watch::Sender<u64>,
}

/// Where a partition is.
enum Place {
    Here(OwnerHandle),
    There(BrokerId),
    /// Nobody has it, or nobody knows who.
    Nowhere,
}

impl Owners {
    /// All of them will be here.
    pub(crate) fn sole(partitions: Partitions) -> Self {
        let by_partition = vec![None; usize::from(partitions.count())];
        let here = RwLock::new(Here { by_partition, row: Vec::new() });
        Self { partitions, here, next: AtomicUsize::new(0), others: None }
    }

    /// Some of them will be here, the others with other brokers.
    pub(crate) fn shared(
        partitions: Partitions,
        me: BrokerId,
        peers: Arc<Peers>,
        telemetry: Telemetry,
    ) -> Self {
        let topology = Mutex::new(Topology::vacant(partitions));
        let others = Others { me, peers, telemetry, topology, changes: watch::Sender::new(0) };
        Self { others: Some(others), ..Self::sole(partitions) }
    }

    /// All partitions.
    pub(crate) const fn partitions(&self) -> Partitions {
        self.partitions
    }

    /// The owner of a partition; `None` if there is no such partition.
    pub(crate) fn of(self: &Arc<Self>, partition: PartitionId) -> Option<Door<'_>> {
        (partition.get() < self.partitions.count()).then_some(Door { owners: self, partition })
    }

    /// The owner of a named task.
    pub(crate) fn of_key(self: &Arc<Self>, namespace: &Namespace, key: &TaskKey) -> Door<'_> {
        Door { owners: self, partition: partition_of(namespace, key, self.partitions) }
    }

    /// The owner of tasks without a name: any will do, and one that is here saves the way.
    pub(crate) fn any(self: &Arc<Self>) -> Door<'_> {
        Door { owners: self, partition: self.any_partition() }
    }

    /// A partition for tasks without a name. What comes together goes to one: its owner writes it together.
    pub(crate) fn any_partition(&self) -> PartitionId {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let here = self.here();
        if here.row.is_empty() {
            let number = u16::try_from(turn % usize::from(self.partitions.count())).ok();
            return number.and_then(PartitionId::new).unwrap_or(PartitionId::FIRST);
        }
        here.row[turn % here.row.len()]
    }

    /// Those that are here.
    pub(crate) fn handles(&self) -> Vec<(PartitionId, OwnerHandle)> {
        let here = self.here();
        let local = |partition: &PartitionId| {
            let local = here.by_partition[usize::from(partition.get())].as_ref()?;
            Some((*partition, local.handle.clone()))
        };
        here.row.iter().filter_map(local).collect()
    }

    /// The owner of a partition, if it is here.
    pub(crate) fn handle(&self, partition: PartitionId) -> Option<OwnerHandle> {
        let here = self.here();
        let local = here.by_partition.get(usize::from(partition.get()))?.as_ref()?;
        Some(local.handle.clone())
    }

    /// The epoch of the owner of a partition, if it is here.
    pub(crate) fn epoch(&self, partition: PartitionId) -> Option<Epoch> {
        let here = self.here();
        Some(here.by_partition.get(usize::from(partition.get()))?.as_ref()?.epoch)
    }

    /// An owner has started here.
    pub(crate) fn start(&self, partition: PartitionId, epoch: Epoch, handle: OwnerHandle) {
        self.put(partition, Some(Local { epoch, handle }));
        self.changed();
    }

    /// An owner has ended here, unless another of the same partition has begun since.
    pub(crate) fn end(&self, partition: PartitionId, epoch: Epoch) -> Option<OwnerHandle> {
        if self.epoch(partition) != Some(epoch) {
            return None;
        }
        let ended = self.put(partition, None);
        self.changed();
        ended.map(|local| local.handle)
    }

    fn put(&self, partition: PartitionId, local: Option<Local>) -> Option<Local> {
        let mut here = self.here.write().unwrap_or_else(PoisonError::into_inner);
        let place = here.by_partition.get_mut(usize::from(partition.get()))?;
        let before = std::mem::replace(place, local);
        let row =
            self.partitions.iter().filter(|at| here.by_partition[usize::from(at.get())].is_some());
        here.row = row.collect();
        before
    }

    /// Who holds what, as the roll says. It may be older than what was noted: what is not newer changes nothing.
    pub(crate) fn publish(&self, topology: &Topology) {
        if let Some(others) = &self.others {
            let mut known = others.topology();
            let before = known.clone();
            for (partition, owner) in topology.owners() {
                known.note(partition, owner.broker.clone(), owner.epoch);
            }
            if *known != before {
                drop(known);
                self.changed();
            }
        }
    }

    /// Wakes whenever an owner has come or gone, here or elsewhere; `None` if they all are here for ever.
    pub(crate) fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.others.as_ref().map(|others| others.changes.subscribe())
    }

    /// Tells the owner of a partition what came of deliveries. Out: whether somebody was there to hear it.
    pub(crate) async fn report(&self, partition: PartitionId, reports: &[Report]) -> bool {
        match (self.place(partition), &self.others) {
            (Place::Here(handle), _) => {
                handle.report(reports.to_vec());
                true
            }
            (Place::There(broker), Some(others)) => {
                others.peers.report(&broker, partition, reports).await.is_ok()
            }
            _ => false,
        }
    }

    /// Somebody else has taken a partition: news that comes before the topology does.
    pub(crate) fn note(&self, partition: PartitionId, broker: BrokerId, epoch: Epoch) {
        if let Some(others) = &self.others {
            let mut topology = others.topology();
            let before = topology.owner(partition).cloned();
            topology.note(partition, broker, epoch);
            let is_news = topology.owner(partition) != before.as_ref();
            drop(topology);
            // Whoever waits for news would otherwise be woken by what it has just said itself.
            if is_news {
                self.changed();
            }
        }
    }

    /// Asks the owner of a partition; one answer each, in order. With the owner here it is on its way when this
    /// returns: what is asked first is decided first.
    pub(crate) fn ask(
        self: &Arc<Self>,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        let again = self.others.is_some().then(|| commands.clone());
        let asked = self.ask_once(partition, commands);
        let owners = Arc::clone(self);
        async move {
            let Some(commands) = again else { return asked.await };
            let answering = async { owners.ask_on(partition, commands, asked.await).await };
            // It goes on being asked for; only nobody waits any longer.
            timeout(ANSWER_MAX, answering).await.unwrap_or(Err(EngineError::Lost))
        }
    }

    /// Asks whoever owns a partition now. [`EngineError::Stopped`] means that nothing was done.
    fn ask_once(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        let (mut here, mut there) = (None, None);
        match (self.place(partition), &self.others) {
            (Place::Here(handle), _) => here = Some(handle.call(commands)),
            (Place::There(broker), Some(others)) => {
                let asked = others.peers.ask(&broker, partition, &commands);
                there = Some((asked, others.telemetry.clone()));
            }
            _ => {}
        }
        async move {
            match (here, there) {
                (Some(asked), _) => asked.await,
                (None, Some((asked, telemetry))) => {
                    let answered = asked.await;
                    telemetry.forwarded(forwarded(&answered));
                    answered.or_else(undone)
                }
                (None, None) => Err(EngineError::Stopped),
            }
        }
    }

    /// Asks on for what nobody has decided yet.
    async fn ask_on(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
        first: Result<Replies, EngineError>,
    ) -> Result<Replies, EngineError> {
        let Some(others) = &self.others else { return first };
        let mut asking = Asking::new(commands, first);
        let mut over = pin!(timeout(ASK_MAX, std::future::pending::<()>()));
        let mut changes = others.changes.subscribe();
        while asking.is_open() {
            // Only while nothing is asked: what is under way is waited for.
            tokio::select! {
                _ = &mut over => break,
                _ = timeout(LOOK_EVERY, changes.changed()) => {}
            }
            asking.take(self.ask_once(partition, asking.commands()).await);
        }
        Ok(asking.answers)
    }

    fn place(&self, partition: PartitionId) -> Place {
        if let Some(handle) = self.handle(partition) {
            return Place::Here(handle);
        }
        let Some(others) = &self.others else { return Place::Nowhere };
        match others.topology().owner(partition) {
            // It was ours until a moment ago.
            Some(owner) if owner.broker == others.me => Place::Nowhere,
            Some(owner) => Place::There(owner.broker.clone()),
            None => Place::Nowhere,
        }
    }

    /// How much there is in all of them, everywhere, of one namespace or of all.
    pub(crate) async fn gauges(
        &self,
        namespace: Option<&Namespace>,
    ) -> Result<Gauges, EngineError> {
        let mut gauges = self.gauges_here(namespace).await?;
        if let Some(others) = &self.others {
            let brokers = others.brokers();
            for broker in brokers {
                let told = others.peers.gauges(&broker, namespace).await;
                gauges = gauges.and(told.map_err(|_| EngineError::Stopped)?);
            }
        }
        Ok(gauges)
    }

    /// How much there is in those that are here.
    pub(crate) async fn gauges_here(
        &self,
        namespace: Option<&Namespace>,
    ) -> Result<Gauges, EngineError> {
        let mut gauges = Gauges::default();
        for (_, handle) in self.handles() {
            match handle.gauges(namespace.cloned()).await {
                Ok(told) => gauges = gauges.and(told),
                // One that has just gone elsewhere is counted there.
                Err(_) if self.others.is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gauges)
    }

    fn here(&self) -> std::sync::RwLockReadGuard<'_, Here> {
        self.here.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        if let Some(others) = &self.others {
            others.changes.send_modify(|count| *count += 1);
        }
    }
}

impl Others {
    fn topology(&self) -> MutexGuard<'_, Topology> {
        self.topology.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All others that hold something.
    fn brokers(&self) -> Vec<BrokerId> {
        let topology = self.topology();
        let owners = topology.owners().map(|(_, owner)| owner.broker.clone());
        let mut brokers: Vec<_> = owners.filter(|broker| *broker != self.me).collect();
        brokers.sort_unstable();
        brokers.dedup();
        brokers
    }
}

fn forwarded(answered: &Result<Replies, PeerError>) -> Forwarded {
    match answered {
        Ok(_) => Forwarded::answered,
        Err(PeerError::NotMine) => Forwarded::elsewhere,
        Err(PeerError::Unreachable(_)) => Forwarded::unreachable,
        Err(PeerError::Lost(_)) => Forwarded::lost,
        Err(PeerError::Refused(_) | PeerError::Busy) => Forwarded::refused,
    }
}

/// What an error of a peer says about what was asked.
fn undone(error: PeerError) -> Result<Replies, EngineError> {
    tracing::debug!(%error, "a call was not forwarded");
    Err(match error {
        PeerError::NotMine | PeerError::Unreachable(_) => EngineError::Stopped,
        PeerError::Lost(_) => EngineError::Lost,
        PeerError::Refused(_) | PeerError::Busy => EngineError::Busy,
    })
}

/// Commands of which some are answered.
struct Asking {
    commands: Vec<Command>,
    answers: Replies,
    /// Which nobody has decided yet.
    open: Vec<usize>,
}

impl Asking {
    fn new(commands: Vec<Command>, first: Result<Replies, EngineError>) -> Self {
        let answers = commands.iter().map(|_| Err(EngineError::Stopped)).collect();
        let open = (0..commands.len()).collect();
        let mut asking = Self { commands, answers, open };
        asking.take(first);
        asking
    }

    const fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Those that are open.
    fn commands(&self) -> Vec<Command> {
        self.open.iter().map(|at| self.commands[*at].clone()).collect()
    }

    /// Takes the answers to those that were open.
    fn take(&mut self, told: Result<Replies, EngineError>) {
        let asked = std::mem::take(&mut self.open);
        match told {
            Ok(answers) => {
                for (at, answer) in asked.into_iter().zip(answers) {
                    self.note(at, answer);
                }
            }
            Err(error) => {
                for at in asked {
                    self.note(at, Err(error.clone()));
                }
            }
        }
    }

    fn note(&mut self, at: usize, answer: Result<Reply, EngineError>) {
        if answer == Err(EngineError::Stopped) {
            self.open.push(at);
        }
        self.answers[at] = answer;
    }
}

/// The way to the owner of a partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Door<'a> {
    owners: &'a Arc<Owners>,
    partition: PartitionId,
}

impl Door<'_> {
    /// Asks for several things at once; one answer each, in order.
    pub(crate) fn call(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, EngineError>> + Send + use<> {
        self.owners.ask(self.partition, commands)
    }

    /// Creates a task, or replaces the one that its key names.
    pub(crate) async fn schedule(&self, order: ScheduleCommand) -> Result<Scheduled, EngineError> {
        match self.one(Command::Schedule(order)).await? {
            Reply::Scheduled(scheduled) => Ok(scheduled),
            answer => Err(unlike(&answer)),
        }
    }

    /// Stops a task before its next fire.
    pub(crate) async fn cancel(&self, subject: Subject) -> Result<Cancelled, EngineError> {
        match self.one(Command::Cancel(subject)).await? {
            Reply::Cancelled(cancelled) => Ok(cancelled),
            answer => Err(unlike(&answer)),
        }
    }

    /// Shows a living task.
    pub(crate) async fn get(&self, subject: Subject) -> Result<Task, EngineError> {
        self.task(Command::Get(subject)).await
    }

    /// Does what is answered with a task: get, pause, resume, redrive.
    pub(crate) async fn task(&self, command: Command) -> Result<Task, EngineError> {
        match self.one(command).await? {
            Reply::Task(task) => Ok(task),
            answer => Err(unlike(&answer)),
        }
    }

    async fn one(&self, command: Command) -> Result<Reply, EngineError> {
        let answers = self.call(vec![command]).await?;
        answers.into_iter().next().unwrap_or(Err(EngineError::Lost))
    }
}

/// Another broker may be of another version, and answer what nobody asked: what it did is not known.
fn unlike(answer: &Reply) -> EngineError {
    tracing::error!(?answer, "another command's answer");
    EngineError::Lost
}
