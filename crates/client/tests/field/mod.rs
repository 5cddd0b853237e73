//! A broker of a few lines, and a wire to it that can be cut.
//!
//! In: what a test wants to happen. Out: what the client said. It keeps nothing and waits for nothing; what it must do is
//! what `proto/punctual/v1` says.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a field that does not stand is a failed test"
)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use punctual_proto::v1;
use punctual_proto::v1::broker_message::Message as Told;
use punctual_proto::v1::worker_message::Message as Tell;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What the broker was told, and how it is to behave.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) batches: Vec<v1::ScheduleBatch>,
    pub(crate) tokens: Vec<Option<String>>,
    pub(crate) hellos: Vec<v1::Hello>,
    pub(crate) acked: Vec<u64>,
    pub(crate) failed: Vec<v1::Fail>,
    pub(crate) refused: Vec<v1::Refuse>,
    pub(crate) extended: Vec<v1::Extend>,
    /// Deliveries that went out, by token.
    pub(crate) delivered: Vec<u64>,
    /// Deliveries that wait for credit.
    pub(crate) due: VecDeque<v1::Delivery>,
    pub(crate) run: String,
    /// The addresses of all brokers; without any it does not know that there could be others.
    pub(crate) topology: Vec<String>,
    /// Whether it refuses all calls because it is about to stop.
    pub(crate) draining: bool,
    /// Workers' streams that are open.
    pub(crate) sessions: u64,
    /// How often it was asked for the topology.
    pub(crate) looks: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Broker {
    said: Mutex<Said>,
    changed: Notify,
    pub(crate) holds_answers: AtomicBool,
    numbers: AtomicU64,
}

impl Broker {
    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap()
    }

    /// Waits until the broker was told enough.
    pub(crate) async fn until(&self, enough: impl Fn(&Said) -> bool) {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if enough(&self.said()) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("waited in vain; the broker was told {:#?}", self.said());
        }
    }

    fn note(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.said());
        self.changed.notify_waiters();
    }

    pub(crate) fn deliver(&self, delivery: v1::Delivery) {
        self.note(|said| said.due.push_back(delivery));
    }

    /// What it says before it looks at a request.
    fn told_first(&self, path: &str) -> Option<axum::response::Response> {
        let mut said = self.said();
        if path == "/v1/topology" && !said.topology.is_empty() {
            said.looks += 1;
            self.changed.notify_waiters();
            let brokers = said.topology.iter();
            let brokers: Vec<_> =
                brokers.map(|address| serde_json::json!({ "address": address })).collect();
            let topology = serde_json::json!({ "leader": null, "brokers": brokers });
            return Some(axum::response::Response::new(topology.to_string().into()));
        }
        said.draining.then(|| Status::unavailable("it is about to stop").into_http())
    }

    fn answer(&self, batch: &v1::ScheduleBatch) -> v1::ScheduledBatch {
        let draining = self.said().draining;
        let results = batch.tasks.iter().map(|task| {
            let result = if draining {
                v1::schedule_result::Result::Problem(v1::Problem {
                    status: 503,
                    detail: "it is about to stop".to_owned(),
                    ..v1::Problem::default()
                })
            } else if task.key.starts_with("more") {
                v1::schedule_result::Result::Problem(v1::Problem {
                    r#type: "urn:punctual:full".to_owned(),
                    status: 503,
                    detail: "no room left".to_owned(),
                    ..v1::Problem::default()
                })
            } else if task.key.starts_with("bad") {
                v1::schedule_result::Result::Problem(v1::Problem {
                    r#type: "urn:punctual:invalid".to_owned(),
                    status: 422,
                    detail: format!("{} is bad", task.key),
                    field: "key".to_owned(),
                })
            } else {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let name = if task.key.is_empty() { number.to_string() } else { task.key.clone() };
                v1::schedule_result::Result::Scheduled(v1::Scheduled {
                    id: format!("id-{name}"),
                    fire_at_ms: 1,
                    version: 1,
                    replaced: false,
                })
            };
            v1::ScheduleResult { result: Some(result) }
        });
        v1::ScheduledBatch { number: batch.number, results: results.collect() }
    }
}

/// A broker behind a wire.
pub(crate) struct Field {
    pub(crate) broker: Arc<Broker>,
    pub(crate) address: SocketAddr,
    cuts: watch::Sender<u64>,
    closed: Arc<AtomicBool>,
}

impl Field {
    pub(crate) async fn new() -> Self {
        let broker = Arc::new(Broker::default());
        broker.said().run = "first".to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let tasks = v1::tasks_server::TasksServer::new(Door(Arc::clone(&broker)));
        let workers = v1::workers_server::WorkersServer::new(Door(Arc::clone(&broker)));
        let teller = Arc::clone(&broker);
        let routes = tonic::service::Routes::new(tasks).add_service(workers);
        let router = routes.into_axum_router().layer(axum::middleware::from_fn(
            move |request: axum::extract::Request, next: axum::middleware::Next| {
                let teller = Arc::clone(&teller);
                async move {
                    match teller.told_first(request.uri().path()) {
                        Some(told) => told,
                        None => next.run(request).await,
                    }
                }
            },
        ));
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_routes(tonic::service::Routes::from(router))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        let wire = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = wire.local_addr().unwrap();
        let cuts = watch::Sender::new(0);
        let closed = Arc::new(AtomicBool::new(false));
        tokio::spawn(carry(wire, server, cuts.subscribe(), Arc::clone(&closed)));
        Self { broker, address, cuts, closed }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn client(&self) -> punctual_client::Client {
        punctual_client::Client::connect(self.url()).unwrap()
    }

    /// Breaks every connection that there is.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Breaks every connection, and lets no other through until it is opened.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.cut();
    }

    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
    }
}

async fn carry(
    wire: TcpListener,
    server: SocketAddr,
    mut cuts: watch::Receiver<u64>,
    closed: Arc<AtomicBool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = wire.accept() => {
                let (mut near, _) = accepted.unwrap();
                if closed.load(Ordering::Relaxed) {
                    continue;
                }
                connections.spawn(async move {
                    let mut far = TcpStream::connect(server).await.unwrap();
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
            cut = cuts.changed() => match cut {
                Ok(()) => connections.abort_all(),
                Err(_) => return,
            }
        }
    }
}

struct Door(Arc<Broker>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl v1::tasks_server::Tasks for Door {
    type ScheduleManyStream = Answers<v1::ScheduledBatch>;

    async fn schedule_many(
        &self,
        request: Request<Streaming<v1::ScheduleBatch>>,
    ) -> Result<Response<Self::ScheduleManyStream>, Status> {
        let token = request.metadata().get("authorization");
        let token = token.map(|token| token.to_str().unwrap().to_owned());
        self.0.note(|said| said.tokens.push(token));
        let broker = Arc::clone(&self.0);
        let answers = request.into_inner().filter_map(move |batch| {
            let batch = batch.ok()?;
            let answer = broker.answer(&batch);
            broker.note(|said| said.batches.push(batch));
            (!broker.holds_answers.load(Ordering::Relaxed)).then_some(Ok(answer))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn schedule(
        &self,
        _: Request<v1::ScheduleRequest>,
    ) -> Result<Response<v1::ScheduleResponse>, Status> {
        Err(Status::already_exists("there is one of that key"))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelResponse>, Status> {
        use v1::cancel_result::Result as Is;
        let results = request.into_inner().keys.into_iter().map(|key| {
            let problem = v1::Problem { status: 404, ..v1::Problem::default() };
            let result = match key.as_str() {
                "firing" => Is::Firing(v1::Firing { attempt: 2 }),
                "missing" => Is::Problem(problem),
                _ => Is::Cancelled(v1::Cancelled {}),
            };
            v1::CancelResult { result: Some(result) }
        });
        Ok(Response::new(v1::CancelResponse { results: results.collect() }))
    }

    async fn touch(
        &self,
        request: Request<v1::TouchRequest>,
    ) -> Result<Response<v1::TouchResponse>, Status> {
        let missing = request.into_inner().keys;
        Ok(Response::new(v1::TouchResponse { missing, ..v1::TouchResponse::default() }))
    }

    async fn get(&self, _: Request<v1::GetRequest>) -> Result<Response<v1::Task>, Status> {
        Err(Status::not_found("no such task"))
    }

    async fn list(
        &self,
        _: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        Ok(Response::new(v1::ListResponse::default()))
    }
}

#[tonic::async_trait]
impl v1::workers_server::Workers for Door {
    type WorkStream = Answers<v1::BrokerMessage>;

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerMessage>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let (outgoing, messages) = mpsc::channel(4);
        let broker = Arc::clone(&self.0);
        tokio::spawn(async move {
            broker.note(|said| said.sessions += 1);
            work(Arc::clone(&broker), request.into_inner(), outgoing).await;
            broker.note(|said| said.sessions -= 1);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

/// One worker's stream: as many deliveries as it has credit for.
async fn work(
    broker: Arc<Broker>,
    mut worker: Streaming<v1::WorkerMessage>,
    outgoing: mpsc::Sender<Result<v1::BrokerMessage, Status>>,
) {
    let tell = async |told| {
        let told = v1::BrokerMessage { message: Some(told) };
        _ = outgoing.send(Ok(told)).await;
    };
    let mut credit = 0_usize;
    let mut unsettled = Vec::new();
    loop {
        let changed = broker.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let free = credit.saturating_sub(unsettled.len());
        let batch: Vec<_> = {
            let due = &mut broker.said().due;
            let count = free.min(due.len());
            due.drain(..count).collect()
        };
        if !batch.is_empty() {
            unsettled.extend(batch.iter().map(|delivery| delivery.token));
            broker.note(|said| said.delivered.extend(batch.iter().map(|it| it.token)));
            tell(Told::Deliveries(v1::Deliveries { deliveries: batch })).await;
        }
        let message = tokio::select! {
            message = worker.message() => message,
            () = changed => continue,
        };
        let Ok(Some(message)) = message else { return };
        match message.message.unwrap() {
            Tell::Hello(hello) => {
                credit = hello.credit as usize;
                let run = broker.said().run.clone();
                tell(Told::Welcome(v1::Welcome { version: "test".to_owned(), run })).await;
                broker.note(|said| said.hellos.push(hello));
            }
            Tell::Credit(told) => {
                credit = told as usize;
                tell(Told::Credit(told)).await;
            }
            Tell::Settle(settle) => {
                let over = settle.ack.iter().copied();
                let over = over.chain(settle.fail.iter().map(|fail| fail.token));
                let over: Vec<u64> =
                    over.chain(settle.refuse.iter().map(|refuse| refuse.token)).collect();
                unsettled.retain(|token| !over.contains(token));
                broker.note(|said| {
                    said.acked.extend(settle.ack);
                    said.failed.extend(settle.fail);
                    said.refused.extend(settle.refuse);
                    said.extended.extend(settle.extend);
                });
            }
        }
    }
}

/// A delivery of its own fire, with a lease of half a minute.
pub(crate) fn delivery(token: u64) -> v1::Delivery {
    v1::Delivery {
        token,
        fire_id: format!("fire-{token}"),
        queue: "q".to_owned(),
        attempt: 1,
        lease_ms: 30_000,
        ..v1::Delivery::default()
    }
}

/// The same with a lease that is soon over.
pub(crate) fn short(token: u64) -> v1::Delivery {
    v1::Delivery { lease_ms: 60, ..delivery(token) }
}

/// Several brokers that know of one another.
pub(crate) async fn cluster(count: usize) -> Vec<Field> {
    let mut fields = Vec::new();
    for number in 0..count {
        let field = Field::new().await;
        field.broker.said().run = format!("run-{number}");
        fields.push(field);
    }
    know(&fields, &fields.iter().map(|field| field.address.to_string()).collect::<Vec<_>>());
    fields
}

/// What brokers say of the topology from now on.
pub(crate) fn know(fields: &[Field], addresses: &[String]) {
    for field in fields {
        field.broker.said().topology = addresses.to_vec();
    }
}
