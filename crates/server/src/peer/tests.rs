//! Calls between two brokers over a real socket.
//!
//! This file has the fixture: [`TestPeer`] is the called broker, in a runtime of its own so that a
//! test can kill it; [`FakeBroker`] answers its calls.

mod forward;
mod other_calls;
mod security;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use punctual_core::{
    AttemptNo, BrokerId, Due, Epoch, FireId, Namespace, NewTask, Occasion, Outcome, PartitionId,
    Payload, Queue, Schedule, Target, Task, TaskId, TaskKey, Timestamp, Version,
};
use punctual_engine::{
    Command, Condition, EngineError, Gauges, InFlight, LaneQuery, Replies, Reply, Report,
    ScheduleCommand, StoredAs, Subject,
};
use punctual_proto::v1;
use punctual_proto::v1::peers_client::PeersClient;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::transport::Endpoint;
use tonic::{Code, Request};

use super::*;
use crate::actions::ActionList;
use crate::courier::queue::{
    LeaseToken, PollOptions, SettleResult, SettleScope, Settlement, WorkerLabel,
};
use crate::listen::{self, Callers, ConnectionStage};
use crate::measures::series::EndSeries;
use crate::measures::windows::{WindowSpec, WindowSum};
use crate::namespace_view::{NamespaceView, ViewQuery};
use crate::telemetry::Telemetry;
use crate::tls::Tls;

const SECRET: &str = "of-the-cluster";
/// A partition without an owner.
const VACANT: u16 = 7;
/// Longer than anything here may take.
const LONG: Duration = Duration::from_secs(30);

/// Answers every `Get` with a task whose version is the number in its key.
#[derive(Debug)]
struct FakeBroker {
    /// Receives a line for every call that arrives.
    arrived: mpsc::UnboundedSender<String>,
    /// A call waits for one permit before it continues.
    continues: Semaphore,
    payload: Payload,
}

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn partition(number: u16) -> PartitionId {
    PartitionId::new(number).unwrap()
}

fn get(key: &str) -> Command {
    Command::Get(Subject::Key(shop(), TaskKey::new(key).unwrap()))
}

fn new_task(payload: Payload) -> NewTask {
    let schedule = Schedule::Once(Due::In(Duration::from_secs(1)));
    let target = Target::Queue(Queue::new("orders").unwrap());
    NewTask { payload, ..NewTask::new(shop(), schedule, target) }
}

fn task(version: u64, payload: Payload) -> Task {
    let id = TaskId::floor(Timestamp::from_millis(7000));
    Task::new(id, new_task(payload).into(), Timestamp::EPOCH, Version::new(version))
}

fn fire_id() -> FireId {
    let task = TaskId::floor(Timestamp::from_millis(7000));
    FireId { task, nominal_at: Timestamp::from_millis(7000) }
}

fn poll_options(max: usize, wait: Duration, lease: Option<Duration>) -> PollOptions {
    let (namespace, queue) = (shop(), Queue::new("orders").unwrap());
    let label = WorkerLabel::new("w1", "10.0.0.1:9");
    PollOptions { namespace, queue, max, wait, lease, label }
}

fn view_query(partition: PartitionId) -> ViewQuery {
    let lanes = LaneQuery::Queues;
    ViewQuery { namespace: shop(), partition: Some(partition), lanes }
}

fn keys(commands: &[Command]) -> Vec<&str> {
    let key = |command| match command {
        &Command::Get(Subject::Key(_, ref key)) => key.as_str(),
        other => panic!("unexpected command: {other:?}"),
    };
    commands.iter().map(key).collect()
}

fn versions(answers: &Replies) -> Vec<u64> {
    let version = |answer: &Result<Reply, EngineError>| match answer {
        Ok(Reply::Task(task)) => task.version.get(),
        other => panic!("unexpected reply: {other:?}"),
    };
    answers.iter().map(version).collect()
}

impl LocalBroker for FakeBroker {
    async fn call(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> Result<Replies, PeerError> {
        self.arrived.send(keys(&commands).join(" ")).unwrap();
        if partition.get() == VACANT {
            return Err(PeerError::NotMine);
        }
        self.continues.acquire().await.unwrap().forget();
        if keys(&commands).contains(&"bad") {
            return Err(PeerError::Refused("bad".to_owned()));
        }
        let version = |key: &str| key.parse().unwrap_or_default();
        let answer = |key: &str| Ok(Reply::Task(task(version(key), self.payload.clone())));
        Ok(keys(&commands).into_iter().map(answer).collect())
    }

    async fn take(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        in_flight: Vec<InFlight>,
    ) -> Result<Epoch, PeerError> {
        self.arrived.send(format!("take {partition} {epoch} {}", in_flight.len())).unwrap();
        self.continues.acquire().await.unwrap().forget();
        self.arrived.send("taken".to_owned()).unwrap();
        Ok(epoch.next().unwrap())
    }

    fn report(&self, partition: PartitionId, reports: Vec<Report>) -> Result<(), PeerError> {
        if partition.get() == VACANT {
            return Err(PeerError::NotMine);
        }
        self.arrived.send(format!("report {}", reports.len())).unwrap();
        Ok(())
    }

    async fn gauges(&self, namespace: Option<Namespace>) -> Result<Gauges, PeerError> {
        let loaded = namespace.map_or(2, |_| 1);
        Ok(Gauges { loaded, ..Gauges::default() })
    }

    async fn view(&self, query: ViewQuery) -> Result<NamespaceView, PeerError> {
        if query.partition == Some(partition(VACANT)) {
            return Err(PeerError::NotMine);
        }
        Ok(NamespaceView { connections: 7, ..NamespaceView::default() })
    }

    fn measure(&self, windows: &[WindowSpec]) -> Vec<WindowSum> {
        let sum = |spec: &WindowSpec| WindowSum {
            total: spec.window.as_secs(),
            ..WindowSum::empty(Timestamp::EPOCH)
        };
        windows.iter().map(sum).collect()
    }

    fn series(&self, namespace: &Namespace) -> EndSeries {
        assert_eq!(*namespace, shop());
        EndSeries { since: Some(Timestamp::EPOCH), rows: Vec::new() }
    }

    fn actions(&self, namespace: &Namespace) -> ActionList {
        assert_eq!(*namespace, shop());
        ActionList { since: Timestamp::EPOCH, actions: Vec::new() }
    }

    async fn poll(&self, options: PollOptions) -> Result<Vec<Polled>, PeerError> {
        let PollOptions { namespace, queue, max, wait, lease, label } = options;
        assert_eq!(label, WorkerLabel::new("w1", "10.0.0.1:9"));
        self.arrived.send(format!("poll {namespace} {queue} {max} {wait:?} {lease:?}")).unwrap();
        self.continues.acquire().await.unwrap().forget();
        let polled = |number| Polled {
            token: LeaseToken(number),
            lease: lease.unwrap_or_default(),
            fire_id: fire_id(),
            attempt: AttemptNo::FIRST,
            fire_at: Timestamp::EPOCH,
            fired_at: Timestamp::EPOCH,
            occasion: Occasion::Due,
            version: Version::FIRST,
            key: None,
            payload: self.payload.clone(),
            callback_of: None,
        };
        Ok((0..max as u64).map(polled).collect())
    }

    fn settle(
        &self,
        scope: SettleScope<'_>,
        settlements: Vec<(LeaseToken, Settlement)>,
    ) -> Result<Vec<SettleResult>, PeerError> {
        assert_eq!(*scope.namespace, shop());
        let here = scope.queue.is_none_or(|queue| queue.as_str() == "orders");
        let results = |(token, _): (LeaseToken, Settlement)| {
            if here && token.0 == 1 { SettleResult::Accepted } else { SettleResult::Stale }
        };
        Ok(settlements.into_iter().map(results).collect())
    }
}

/// The called broker, in a runtime of its own, so that a test can kill it.
struct TestPeer {
    broker: BrokerId,
    fake: Arc<FakeBroker>,
    arrived: mpsc::UnboundedReceiver<String>,
    runtime: Option<Runtime>,
}

impl TestPeer {
    fn start(payload: Payload, tls: Option<Tls>) -> Self {
        let (sender, arrived) = mpsc::unbounded_channel();
        let fake = Arc::new(FakeBroker { arrived: sender, continues: Semaphore::new(0), payload });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        // The certificate is for this name.
        let broker = BrokerId::new(&format!("localhost:{port}"));
        let builder = &mut tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let routes = Routes::new(server(Arc::clone(&fake), Secret::new(SECRET).unwrap()));
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let (_stage, stages) = watch::channel(ConnectionStage::Serve);
            let (router, callers) = (routes.into_axum_router(), Callers::Trusted);
            let routes: listen::Routes = Arc::new(move |request, trust, address| {
                listen::call_router(&router, request.map(Body::new), trust, address)
            });
            let telemetry = Telemetry::new();
            listen::accept(&listener, tls.as_ref(), routes, callers, stages, &telemetry).await;
        });
        Self { broker, fake, arrived, runtime: Some(runtime) }
    }

    async fn arrived(&mut self) -> String {
        timeout(LONG, self.arrived.recv()).await.unwrap().unwrap()
    }

    fn let_continue(&self, calls: usize) {
        self.fake.continues.add_permits(calls);
    }

    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for TestPeer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn peers_with(secret: &str, transport: Transport) -> Arc<Peers> {
    let secret = Secret::new(secret).unwrap();
    Arc::new(Peers::new(BrokerId::new("here:1"), secret, transport).unwrap())
}

fn peers() -> Arc<Peers> {
    peers_with(SECRET, Transport::Plain)
}

fn kind(error: &PeerError) -> &'static str {
    match error {
        PeerError::NotMine => "not mine",
        PeerError::Unreachable(_) => "unreachable",
        PeerError::Busy => "busy",
        PeerError::Lost(_) => "lost",
        PeerError::Refused(_) => "refused",
    }
}

fn report() -> Report {
    Report::of(fire_id(), AttemptNo::FIRST, Timestamp::EPOCH, Some(Outcome::Acked))
}
