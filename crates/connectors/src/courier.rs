//! Carries deliveries over connections: one line and a few sessions for each.
//!
//! A session takes a batch, takes the permits at its first byte, sends it, and reports each
//! delivery once. When the last session of a connection is gone, it is reported away to the owners:
//! their lanes wait, and what this courier has goes back to them unsent after [`HELD_MAX`]. A
//! session that is lost is opened again after pauses that grow up to a second. The lock of a line
//! is never held across an await.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_core::{
    AttemptResult, Clock, ConnectionName, Guarantee, Outcome, PartitionId, Target, Timestamp,
};
use punctual_engine::{ConnectionState, Courier, Delivery, OwnerHandle, Report, Reports};
use punctual_sql::Pauses;
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::connection::{Connection, Connections, System};
use crate::line::{LaneKey, Line, LineEntry};
use crate::not_built::NotBuilt;
use crate::sink::{SessionLost, Sink, SinkSession, failed};

/// Deliveries in one batch: enough that a commit is a small part of its cost, few enough that a
/// batch is short.
const BATCH_MAX: usize = 256;
/// How long a delivery waits for a connection that is away before it goes back to its owner.
const HELD_MAX: Duration = Duration::from_secs(2);
/// How often lines are checked for deliveries that were recalled or have expired.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
/// How long a session is idle before it checks that the other side is there.
const CHECK_AFTER: Duration = Duration::from_secs(1);

/// What happens to connections and sources, for metrics.
#[derive(Debug)]
pub enum ConnectorEvent<'a> {
    /// An attempt over a connection has ended.
    Attempt(&'a ConnectionName, &'a Delivery, &'a Outcome),
    /// A connection is away, or is back.
    State(&'a ConnectionName, ConnectionState),
    /// A source has taken rows, and moved rejected ones aside.
    Taken {
        /// The source.
        source: &'a str,
        /// Rows that were applied.
        applied: usize,
        /// Rows that were moved aside.
        rejected: usize,
        /// How long the oldest row had waited.
        lag: Duration,
    },
}

/// Learns what happens.
pub type Observer = Arc<dyn Fn(ConnectorEvent<'_>) + Send + Sync>;

/// Carries deliveries over connections.
pub struct SinkCourier {
    pipes: BTreeMap<ConnectionName, Arc<Pipe>>,
    rules: Connections,
    owners: Arc<OwnerList>,
    clock: Arc<dyn Clock>,
    observer: Observer,
    stop: watch::Sender<Stop>,
}

/// How far the courier has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    Runs,
    /// Waits for no answer any more.
    GivenUp,
}

/// The owners that learn which connections are away.
#[derive(Debug, Default)]
struct OwnerList(Mutex<Vec<(PartitionId, OwnerHandle)>>);

/// A connection, its line and its sessions.
struct Pipe {
    name: ConnectionName,
    sink: Box<dyn Sink>,
    line: Mutex<Line>,
    /// Wakes sessions when there is something to send.
    work: Notify,
    state: Mutex<PipeState>,
    in_flight: AtomicUsize,
    confirmed: AtomicU64,
    failed: AtomicU64,
}

#[derive(Debug, Clone)]
struct PipeState {
    open: usize,
    since: Timestamp,
    problem: Option<String>,
}

/// A connection as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionView {
    /// Its name.
    pub name: ConnectionName,
    /// The kind of system.
    pub kind: &'static str,
    /// Where it is, without secrets.
    pub address: String,
    /// Whether deliveries can be sent.
    pub state: ConnectionState,
    /// Since when.
    pub since: Timestamp,
    /// Why it is away.
    pub problem: Option<String>,
    /// Open sessions.
    pub sessions: usize,
    /// Deliveries that wait for a session.
    pub waiting: usize,
    /// Deliveries that were sent and are not confirmed.
    pub in_flight: usize,
    /// Deliveries that were confirmed since the broker started.
    pub confirmed: u64,
    /// Deliveries that failed or were refused since the broker started.
    pub failed: u64,
    /// The namespaces whose tasks may name it.
    pub namespaces: Vec<String>,
    /// The places that they may name.
    pub allow: Vec<String>,
    /// The places that the configuration has.
    pub places: Vec<String>,
}

impl fmt::Debug for SinkCourier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkCourier").field("connections", &self.pipes.len()).finish()
    }
}

impl SinkCourier {
    /// Starts the sessions of all connections. They end when the courier is dropped.
    #[must_use]
    pub fn start(
        rules: Connections,
        answer_bytes: usize,
        clock: Arc<dyn Clock>,
        observer: Observer,
    ) -> Arc<Self> {
        let now = clock.now();
        let pipes = rules.iter().map(|connection| {
            let pipe = Pipe {
                name: connection.name.clone(),
                sink: connection.sink(answer_bytes, &clock),
                line: Mutex::new(Line::new(connection.sessions)),
                work: Notify::new(),
                state: Mutex::new(PipeState { open: 0, since: now, problem: None }),
                in_flight: AtomicUsize::new(0),
                confirmed: AtomicU64::new(0),
                failed: AtomicU64::new(0),
            };
            (connection.name.clone(), Arc::new(pipe))
        });
        let pipes = pipes.collect();
        let (owners, stop) = (Arc::default(), watch::Sender::new(Stop::Runs));
        let courier = Arc::new(Self { pipes, rules, owners, clock, observer, stop });
        for connection in courier.rules.iter() {
            let Some(pipe) = courier.pipes.get(&connection.name) else { continue };
            for _ in 0..connection.sessions {
                tokio::spawn(courier.worker(pipe).run());
            }
            tokio::spawn(courier.worker(pipe).sweep());
        }
        courier
    }

    fn worker(&self, pipe: &Arc<Pipe>) -> SessionRunner {
        SessionRunner {
            pipe: Arc::clone(pipe),
            owners: Arc::clone(&self.owners),
            clock: Arc::clone(&self.clock),
            observer: Arc::clone(&self.observer),
            stop: self.stop.subscribe(),
        }
    }

    /// Which namespace may use which connection.
    #[must_use]
    pub const fn rules(&self) -> &Connections {
        &self.rules
    }

    /// Adds the owner of a partition, and says which connections are away.
    pub fn serve(&self, partition: PartitionId, owner: OwnerHandle) {
        let mut owners = lock(&self.owners.0);
        owners.retain(|(at, _)| *at != partition);
        for pipe in self.pipes.values() {
            if lock(&pipe.state).open == 0 {
                owner.set_connection(pipe.name.clone(), ConnectionState::Away);
            }
        }
        owners.push((partition, owner));
    }

    /// Removes the owner of a partition.
    pub fn forget(&self, partition: PartitionId) {
        lock(&self.owners.0).retain(|(at, _)| *at != partition);
    }

    /// Whether nothing waits and nothing is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let idle = |pipe: &Arc<Pipe>| {
            lock(&pipe.line).waiting() == 0 && pipe.in_flight.load(Ordering::Acquire) == 0
        };
        self.pipes.values().all(idle)
    }

    /// Returns to their owners the deliveries that wait. Called when the broker drains.
    pub fn close(&self) {
        for pipe in self.pipes.values() {
            let waiting = lock(&pipe.line).clear();
            report_unsent(waiting);
        }
    }

    /// Stops waiting for answers. Returns how many deliveries were in flight.
    pub fn give_up(&self) -> usize {
        self.close();
        self.stop.send_replace(Stop::GivenUp);
        self.pipes.values().map(|pipe| pipe.in_flight.load(Ordering::Acquire)).sum()
    }

    /// All connections, by name.
    #[must_use]
    pub fn views(&self) -> Vec<ConnectionView> {
        let views = self.rules.iter().filter_map(|connection| {
            let pipe = self.pipes.get(&connection.name)?;
            let PipeState { open, since, problem } = lock(&pipe.state).clone();
            Some(ConnectionView {
                name: connection.name.clone(),
                kind: connection.kind.as_str(),
                address: connection.address(),
                state: state_of(open),
                since,
                problem: problem.filter(|_| open == 0),
                sessions: open,
                waiting: lock(&pipe.line).waiting(),
                in_flight: pipe.in_flight.load(Ordering::Acquire),
                confirmed: pipe.confirmed.load(Ordering::Relaxed),
                failed: pipe.failed.load(Ordering::Relaxed),
                namespaces: connection.namespaces.clone(),
                allow: connection.allow.clone(),
                places: connection.places(),
            })
        });
        views.collect()
    }

    /// Opens a session of a connection to see whether it works, and closes it again.
    pub async fn test(&self, name: &ConnectionName) -> Option<Result<(), String>> {
        let pipe = self.pipes.get(name)?;
        Some(match pipe.sink.connect().await {
            Ok(mut session) => session.check().await.map_err(|lost| lost.to_string()),
            Err(problem) => Err(problem),
        })
    }

    /// The result of a delivery that the configuration does not allow any more.
    fn not_allowed(&self, delivery: &Delivery) -> Option<AttemptResult> {
        let definition = &delivery.definition;
        let Target::Sink(sink) = &definition.target else {
            return Some(failed("the target is not a connection"));
        };
        let allowed = self.rules.check(&definition.namespace, sink);
        allowed.err().map(|invalid| failed(&invalid.to_string()))
    }
}

impl Courier for SinkCourier {
    fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports) {
        let now = self.clock.now();
        let mut refused = Vec::new();
        for mut delivery in deliveries {
            let pipe = match &delivery.definition.target {
                Target::Sink(sink) => self.pipes.get(&sink.connection),
                Target::Http(_) | Target::Queue(_) | Target::Mail(_) | Target::Grpc(_) => None,
            };
            let key = LaneKey::of(&delivery);
            match (self.not_allowed(&delivery), pipe, key) {
                (None, Some(pipe), Some(key)) => {
                    let reports = reports.clone();
                    lock(&pipe.line).push(key, LineEntry { delivery, reports, since: now });
                    pipe.work.notify_one();
                }
                (result, ..) => {
                    // An attempt that ends at once: nothing was sent, but it is one of its tries.
                    let outcome = match delivery.send(now) {
                        Ok(()) => {
                            let gone = || failed("the connection is not configured");
                            Some(result.unwrap_or_else(gone).outcome)
                        }
                        Err(_) => None,
                    };
                    refused.push(delivery.report(outcome));
                }
            }
        }
        if !refused.is_empty() {
            reports.send(refused);
        }
    }
}

/// Runs one session of a connection.
struct SessionRunner {
    pipe: Arc<Pipe>,
    owners: Arc<OwnerList>,
    clock: Arc<dyn Clock>,
    observer: Observer,
    stop: watch::Receiver<Stop>,
}

impl SessionRunner {
    /// Keeps a session open and sends what waits. Returns when the courier is dropped.
    async fn run(mut self) {
        let mut pauses = Pauses::default();
        let mut stop = self.stop.clone();
        loop {
            let pause = pauses.current();
            let opened = tokio::select! {
                _ = stop.changed() => return,
                opened = async {
                    // An await that never completes, bounded by the pause.
                    let _ = timeout(pause, std::future::pending::<()>()).await;
                    self.pipe.sink.connect().await
                } => opened,
            };
            match opened {
                Ok(session) => {
                    pauses.succeeded();
                    self.opened();
                    let lost = self.serve(session).await;
                    self.closed(lost.as_ref());
                    if lost.is_none() {
                        return;
                    }
                    // A session that breaks at its first batch must not come back without a pause.
                    pauses.failed();
                }
                Err(problem) => {
                    pauses.failed();
                    self.problem(problem);
                }
            }
        }
    }

    /// Sends batches until the session is lost. Returns `None` if the courier stops.
    async fn serve(&mut self, mut session: Box<dyn SinkSession>) -> Option<SessionLost> {
        let mut stop = self.stop.clone();
        loop {
            let batch = lock(&self.pipe.line).take(BATCH_MAX);
            if let Some((key, batch)) = batch {
                // Others may have been woken for the same delivery, or not at all.
                self.pipe.work.notify_one();
                let lost = self.send(&mut session, &key, batch).await;
                lock(&self.pipe.line).ended(&key);
                match lost {
                    Some(lost) => return Some(lost),
                    None => continue,
                }
            }
            tokio::select! {
                _ = stop.changed() => return None,
                () = self.pipe.work.notified() => {}
                _ = timeout(CHECK_AFTER, std::future::pending::<()>()) => {
                    if let Err(lost) = session.check().await {
                        return Some(lost);
                    }
                }
            }
        }
    }

    /// Takes the permits of a batch, sends it and reports every delivery.
    async fn send(
        &mut self,
        session: &mut Box<dyn SinkSession>,
        key: &LaneKey,
        batch: Vec<LineEntry>,
    ) -> Option<SessionLost> {
        let now = self.clock.now();
        let (mut deliveries, mut routes, mut unsent) = (Vec::new(), Vec::new(), Vec::new());
        for mut waiting in batch {
            match waiting.delivery.send(now) {
                Ok(()) => {
                    deliveries.push(waiting.delivery);
                    routes.push(waiting.reports);
                }
                Err(_) => unsent.push(waiting),
            }
        }
        report_unsent(unsent);
        let first = deliveries.first()?;
        let limit = first.definition.timeout;
        let count = deliveries.len();
        self.pipe.in_flight.fetch_add(count, Ordering::AcqRel);
        let mut stop = self.stop.clone();
        let ended = tokio::select! {
            sent = timeout(limit, session.send(&deliveries)) => Ok(sent),
            _ = stop.changed() => Err(()),
        };
        let (results, lost) = match ended {
            Ok(Ok(sent)) => {
                for (delivery, result) in deliveries.iter().zip(&sent.results) {
                    if result.is_none() {
                        delivery.permit.unsend();
                    }
                }
                (sent.results, sent.lost)
            }
            Ok(Err(_)) => {
                let expired = deliveries.iter().map(|_| Some(Outcome::Expired.into()));
                let why = format!("no answer within {} ms", limit.as_millis());
                (expired.collect(), Some(SessionLost(why)))
            }
            // At most once must not be sent again; the others stay in the store.
            Err(()) => {
                let given_up = |delivery: &Delivery| match delivery.definition.guarantee {
                    Guarantee::AtMostOnce => Some(Outcome::Expired.into()),
                    Guarantee::AtLeastOnce | Guarantee::ExactlyOnce => None,
                };
                let why = SessionLost("the broker stops".to_owned());
                (deliveries.iter().map(given_up).collect::<Vec<_>>(), Some(why))
            }
        };
        self.report(&deliveries, routes, results);
        self.pipe.in_flight.fetch_sub(count, Ordering::AcqRel);
        if let Some(lost) = &lost {
            let (connection, namespace) = (&self.pipe.name, &key.namespace);
            let error = lost;
            tracing::warn!(%connection, %namespace, deliveries = count, %error, "session lost");
        }
        lost
    }

    fn report(
        &self,
        deliveries: &[Delivery],
        routes: Vec<Reports>,
        results: Vec<Option<AttemptResult>>,
    ) {
        let mut reports = ReportGroups::default();
        // A kind that returns too few results must not lose a delivery.
        let missing = || Some(failed("the sink returned no result"));
        let mut results = results.into_iter();
        for (delivery, route) in deliveries.iter().zip(routes) {
            let result = results.next().unwrap_or_else(missing);
            if let Some(result) = &result {
                let counter = match result.outcome {
                    Outcome::Acked => &self.pipe.confirmed,
                    _ => &self.pipe.failed,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                let event = ConnectorEvent::Attempt(&self.pipe.name, delivery, &result.outcome);
                (self.observer)(event);
            }
            let (outcome, answer) = match result {
                Some(AttemptResult { outcome, answer }) => (Some(outcome), answer),
                None => (None, None),
            };
            reports.add(route, delivery.report(outcome).with_answer(answer));
        }
        reports.send();
    }

    fn opened(&self) {
        let back = {
            let mut state = lock(&self.pipe.state);
            state.open += 1;
            if state.open == 1 {
                state.since = self.clock.now();
            }
            state.open == 1
        };
        if back {
            tracing::info!(connection = %self.pipe.name, "connection ready");
            self.announce(ConnectionState::Ready);
        }
    }

    fn closed(&self, lost: Option<&SessionLost>) {
        let away = {
            let mut state = lock(&self.pipe.state);
            state.open = state.open.saturating_sub(1);
            if state.open == 0 {
                state.since = self.clock.now();
                state.problem = lost.map(ToString::to_string);
            }
            state.open == 0
        };
        if away && let Some(lost) = lost {
            tracing::warn!(connection = %self.pipe.name, error = %lost, "connection away");
            self.announce(ConnectionState::Away);
        }
    }

    /// Notes why a connection could not be opened. Logged when the reason changes.
    fn problem(&self, problem: String) {
        let mut state = lock(&self.pipe.state);
        if state.problem.as_ref() != Some(&problem) {
            tracing::warn!(connection = %self.pipe.name, error = %problem, "cannot connect");
            state.problem = Some(problem);
        }
    }

    fn announce(&self, state: ConnectionState) {
        (self.observer)(ConnectorEvent::State(&self.pipe.name, state));
        let owners = lock(&self.owners.0);
        for (_, owner) in &*owners {
            owner.set_connection(self.pipe.name.clone(), state);
        }
    }

    /// Returns deliveries that may not be sent any more, or cannot be sent now, to their owners.
    async fn sweep(self) {
        let mut ticks = interval(SWEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = self.stop.clone();
        loop {
            tokio::select! {
                _ = stop.changed() => return,
                _ = ticks.tick() => {}
            }
            let away = lock(&self.pipe.state).open == 0;
            let swept = lock(&self.pipe.line).sweep(self.clock.now(), away.then_some(HELD_MAX));
            report_unsent(swept);
        }
    }
}

const fn state_of(open: usize) -> ConnectionState {
    match open {
        0 => ConnectionState::Away,
        _ => ConnectionState::Ready,
    }
}

/// Reports deliveries as not sent.
fn report_unsent(waiting: Vec<LineEntry>) {
    let mut reports = ReportGroups::default();
    for LineEntry { delivery, reports: route, .. } in waiting {
        // From now on it cannot be sent, whatever the permit says.
        delivery.permit.give_up();
        reports.add(route, delivery.report(None));
    }
    reports.send();
}

/// Reports by the owner that they go to.
#[derive(Default)]
struct ReportGroups(Vec<(Reports, Vec<Report>)>);

impl ReportGroups {
    fn add(&mut self, route: Reports, report: Report) {
        match self.0.iter_mut().find(|(known, _)| known.same_as(&route)) {
            Some((_, reports)) => reports.push(report),
            None => self.0.push((route, vec![report])),
        }
    }

    fn send(self) {
        self.0.into_iter().for_each(|(route, reports)| route.send(reports));
    }
}

/// Every update under these locks is complete before it can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// The sink of the connection.
    fn sink(&self, answer_bytes: usize, clock: &Arc<dyn Clock>) -> Box<dyn Sink> {
        match &self.system {
            System::Sql(sql) => Box::new(sql.sink(answer_bytes, Arc::clone(clock))),
            #[cfg(feature = "kafka")]
            System::Kafka(link) => crate::kafka::sink(&self.name, link, answer_bytes),
            #[cfg(feature = "amqp")]
            System::Amqp(link) => crate::amqp::sink(&self.name, link, answer_bytes),
            #[cfg(feature = "nats")]
            System::Nats(link) => crate::nats::sink(&self.name, link, answer_bytes),
            #[cfg(feature = "mqtt")]
            System::Mqtt(link) => crate::mqtt::sink(&self.name, link, answer_bytes),
            #[cfg(feature = "redis-stream")]
            System::Redis(link) => crate::redis_stream::sink(&self.name, link, answer_bytes),
            // The settings of a kind that is not built in are an error, so this is not reached.
            #[allow(unreachable_patterns, reason = "reached unless all kinds are built in")]
            _ => Box::new(NotBuilt(self.kind.as_str())),
        }
    }
}
