//! A fake broker in the test's process, behind a connection that the test can cut.
//!
//! It follows `proto/punctual/v1`, keeps no tasks and waits for nothing. It records what the client
//! sends ([`BrokerRecord`]); the same record holds what a test wants it to do.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use punctual_proto::v1;
use punctual_proto::v1::broker_message::Message as ToWorker;
use punctual_proto::v1::worker_message::Message as FromWorker;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// A test that waits longer than this for an event fails.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(20);

/// What the client has sent, and how the broker behaves.
#[derive(Debug, Default)]
pub(crate) struct BrokerRecord {
    pub(crate) batches: Vec<v1::ScheduleBatch>,
    pub(crate) tokens: Vec<Option<String>>,
    pub(crate) hellos: Vec<v1::Hello>,
    pub(crate) acked: Vec<u64>,
    pub(crate) results: Vec<v1::AckWithResult>,
    pub(crate) failed: Vec<v1::Fail>,
    pub(crate) refused: Vec<v1::Refuse>,
    pub(crate) extended: Vec<v1::Extend>,
    /// The tokens of deliveries that were sent.
    pub(crate) delivered: Vec<u64>,
    /// Deliveries that wait for credit.
    pub(crate) due: VecDeque<v1::Delivery>,
    /// Names the run of the process, as in `Welcome`.
    pub(crate) run: String,
    /// The addresses of all brokers. If empty, the broker has no topology.
    pub(crate) topology: Vec<String>,
    /// The broker refuses all calls because it is about to stop.
    pub(crate) draining: bool,
    /// Open streams of workers.
    pub(crate) sessions: u64,
    /// How often the topology was requested.
    pub(crate) topology_requests: u64,
}

/// What the services of a fake broker share.
#[derive(Debug, Default)]
struct FakeBrokerState {
    record: Mutex<BrokerRecord>,
    changed: Notify,
    holds_answers: AtomicBool,
    numbers: AtomicU64,
}

impl FakeBrokerState {
    fn record(&self) -> MutexGuard<'_, BrokerRecord> {
        self.record.lock().unwrap()
    }

    async fn until(&self, enough: impl Fn(&BrokerRecord) -> bool) {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if enough(&self.record()) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(WAIT_MAX, waiting).await.is_err() {
            panic!("timed out; the record of the broker: {:#?}", self.record());
        }
    }

    fn change(&self, change: impl FnOnce(&mut BrokerRecord)) {
        change(&mut self.record());
        self.changed.notify_waiters();
    }

    /// Answers requests for the topology, and all requests while the broker drains.
    fn answer_before_services(&self, path: &str) -> Option<axum::response::Response> {
        let mut record = self.record();
        if path == "/v1/topology" && !record.topology.is_empty() {
            record.topology_requests += 1;
            self.changed.notify_waiters();
            let brokers = record.topology.iter();
            let brokers: Vec<_> =
                brokers.map(|address| serde_json::json!({ "address": address })).collect();
            let topology = serde_json::json!({ "leader": null, "brokers": brokers });
            return Some(axum::response::Response::new(topology.to_string().into()));
        }
        record.draining.then(|| Status::unavailable("the broker is about to stop").into_http())
    }

    fn answer(&self, batch: &v1::ScheduleBatch) -> v1::ScheduledBatch {
        let draining = self.record().draining;
        let results = batch.tasks.iter().map(|task| {
            let result = if draining {
                v1::schedule_result::Result::Problem(v1::Problem {
                    status: 503,
                    detail: "the broker is about to stop".to_owned(),
                    ..v1::Problem::default()
                })
            } else if task.key.starts_with("more") {
                v1::schedule_result::Result::Problem(v1::Problem {
                    r#type: "urn:punctual:full".to_owned(),
                    status: 503,
                    detail: "out of memory".to_owned(),
                    ..v1::Problem::default()
                })
            } else if task.key.starts_with("bad") {
                v1::schedule_result::Result::Problem(v1::Problem {
                    r#type: "urn:punctual:invalid".to_owned(),
                    status: 422,
                    detail: format!("{} is bad", task.key),
                    field: "key".to_owned(),
                    existing: None,
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

/// A running fake broker.
pub(crate) struct FakeBroker {
    state: Arc<FakeBrokerState>,
    pub(crate) address: SocketAddr,
    cuts: watch::Sender<u64>,
    closed: Arc<AtomicBool>,
}

impl FakeBroker {
    pub(crate) async fn start() -> Self {
        let state = Arc::new(FakeBrokerState::default());
        state.record().run = "first".to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let tasks = v1::tasks_server::TasksServer::new(FakeServices(Arc::clone(&state)));
        let workers = v1::workers_server::WorkersServer::new(FakeServices(Arc::clone(&state)));
        let first = Arc::clone(&state);
        let routes = tonic::service::Routes::new(tasks).add_service(workers);
        let router = routes.into_axum_router().layer(axum::middleware::from_fn(
            move |request: axum::extract::Request, next: axum::middleware::Next| {
                let first = Arc::clone(&first);
                async move {
                    match first.answer_before_services(request.uri().path()) {
                        Some(answer) => answer,
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
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = front.local_addr().unwrap();
        let cuts = watch::Sender::new(0);
        let closed = Arc::new(AtomicBool::new(false));
        tokio::spawn(forward(front, server, cuts.subscribe(), Arc::clone(&closed)));
        Self { state, address, cuts, closed }
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, BrokerRecord> {
        self.state.record()
    }

    /// Waits until the record satisfies a condition.
    pub(crate) async fn until(&self, enough: impl Fn(&BrokerRecord) -> bool) {
        self.state.until(enough).await;
    }

    /// Sends a delivery to the next worker that has credit.
    pub(crate) fn deliver(&self, delivery: v1::Delivery) {
        self.state.change(|record| record.due.push_back(delivery));
    }

    /// Sets whether batches are left without an answer.
    pub(crate) fn hold_answers(&self, hold: bool) {
        self.state.holds_answers.store(hold, Ordering::Relaxed);
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn client(&self) -> punctual_client::Client {
        punctual_client::Client::connect(self.url()).unwrap()
    }

    /// Breaks all open connections.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Breaks all open connections and accepts no others until `open`.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.cut();
    }

    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
    }
}

/// Forwards connections to the server until they are cut.
async fn forward(
    front: TcpListener,
    server: SocketAddr,
    mut cuts: watch::Receiver<u64>,
    closed: Arc<AtomicBool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = front.accept() => {
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

struct FakeServices(Arc<FakeBrokerState>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl v1::tasks_server::Tasks for FakeServices {
    type ScheduleManyStream = Answers<v1::ScheduledBatch>;

    async fn schedule_many(
        &self,
        request: Request<Streaming<v1::ScheduleBatch>>,
    ) -> Result<Response<Self::ScheduleManyStream>, Status> {
        let token = request.metadata().get("authorization");
        let token = token.map(|token| token.to_str().unwrap().to_owned());
        self.0.change(|record| record.tokens.push(token));
        let broker = Arc::clone(&self.0);
        let answers = request.into_inner().filter_map(move |batch| {
            let batch = batch.ok()?;
            let answer = broker.answer(&batch);
            broker.change(|record| record.batches.push(batch));
            (!broker.holds_answers.load(Ordering::Relaxed)).then_some(Ok(answer))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn schedule(
        &self,
        _: Request<v1::ScheduleRequest>,
    ) -> Result<Response<v1::ScheduleResponse>, Status> {
        Err(Status::already_exists("a task with this key exists"))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelResponse>, Status> {
        use v1::cancel_result::Result as Outcome;
        let results = request.into_inner().keys.into_iter().map(|key| {
            let problem = v1::Problem { status: 404, ..v1::Problem::default() };
            let result = match key.as_str() {
                "firing" => Outcome::Firing(v1::Firing { attempt: 2 }),
                "missing" => Outcome::Problem(problem),
                _ => Outcome::Cancelled(v1::Cancelled {}),
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
        Err(Status::not_found("task not found"))
    }

    async fn list(
        &self,
        _: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        Ok(Response::new(v1::ListResponse::default()))
    }

    async fn pause(&self, _: Request<v1::TaskRequest>) -> Result<Response<v1::Task>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn resume(&self, _: Request<v1::TaskRequest>) -> Result<Response<v1::Task>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn fire(&self, _: Request<v1::TaskRequest>) -> Result<Response<v1::Task>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn fires(
        &self,
        _: Request<v1::FiresRequest>,
    ) -> Result<Response<v1::FiresResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn explain(
        &self,
        _: Request<v1::TaskRequest>,
    ) -> Result<Response<v1::Explanation>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn dead_letters(
        &self,
        _: Request<v1::DeadLettersRequest>,
    ) -> Result<Response<v1::DeadLettersResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn redrive(
        &self,
        _: Request<v1::RedriveRequest>,
    ) -> Result<Response<v1::RedriveResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn delete_dead_letter(
        &self,
        _: Request<v1::DeleteDeadLetterRequest>,
    ) -> Result<Response<v1::DeleteDeadLetterResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn stats(
        &self,
        _: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::StatsResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn namespaces(
        &self,
        _: Request<v1::NamespacesRequest>,
    ) -> Result<Response<v1::NamespacesResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn preview(
        &self,
        _: Request<v1::PreviewRequest>,
    ) -> Result<Response<v1::PreviewResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn forecast(
        &self,
        _: Request<v1::ForecastRequest>,
    ) -> Result<Response<v1::ForecastResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn queues(
        &self,
        _: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::QueuesResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn workers(
        &self,
        _: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::WorkersResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn lanes(
        &self,
        _: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::LanesResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn dead_groups(
        &self,
        _: Request<v1::NamespaceRequest>,
    ) -> Result<Response<v1::DeadGroupsResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn delete_dead_letters(
        &self,
        _: Request<v1::DeleteDeadLettersRequest>,
    ) -> Result<Response<v1::DeleteDeadLettersResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }

    async fn who_am_i(
        &self,
        _: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIResponse>, Status> {
        Err(Status::not_found("the fake broker has no tasks"))
    }
}

#[tonic::async_trait]
impl v1::workers_server::Workers for FakeServices {
    type WorkStream = Answers<v1::BrokerMessage>;

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerMessage>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let (outgoing, messages) = mpsc::channel(4);
        let broker = Arc::clone(&self.0);
        tokio::spawn(async move {
            broker.change(|record| record.sessions += 1);
            work(Arc::clone(&broker), request.into_inner(), outgoing).await;
            broker.change(|record| record.sessions -= 1);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

/// Serves the stream of one worker: sends as many deliveries as it has credit for.
async fn work(
    broker: Arc<FakeBrokerState>,
    mut worker: Streaming<v1::WorkerMessage>,
    outgoing: mpsc::Sender<Result<v1::BrokerMessage, Status>>,
) {
    let send = async |message| {
        let message = v1::BrokerMessage { message: Some(message) };
        _ = outgoing.send(Ok(message)).await;
    };
    let mut credit = 0_usize;
    let mut unsettled = Vec::new();
    loop {
        let changed = broker.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let free = credit.saturating_sub(unsettled.len());
        let batch: Vec<_> = {
            let due = &mut broker.record().due;
            let count = free.min(due.len());
            due.drain(..count).collect()
        };
        if !batch.is_empty() {
            unsettled.extend(batch.iter().map(|delivery| delivery.token));
            broker.change(|record| record.delivered.extend(batch.iter().map(|it| it.token)));
            send(ToWorker::Deliveries(v1::Deliveries { deliveries: batch })).await;
        }
        let message = tokio::select! {
            message = worker.message() => message,
            () = changed => continue,
        };
        let Ok(Some(message)) = message else { return };
        match message.message.unwrap() {
            FromWorker::Hello(hello) => {
                credit = hello.credit as usize;
                let run = broker.record().run.clone();
                send(ToWorker::Welcome(v1::Welcome { version: "test".to_owned(), run })).await;
                broker.change(|record| record.hellos.push(hello));
            }
            FromWorker::Credit(granted) => {
                credit = granted as usize;
                send(ToWorker::Credit(granted)).await;
            }
            FromWorker::Settle(settle) => {
                let settled = settle.ack.iter().copied();
                let settled = settled.chain(settle.ack_with_result.iter().map(|ack| ack.token));
                let settled = settled.chain(settle.fail.iter().map(|fail| fail.token));
                let settled: Vec<u64> =
                    settled.chain(settle.refuse.iter().map(|refuse| refuse.token)).collect();
                unsettled.retain(|token| !settled.contains(token));
                broker.change(|record| {
                    record.acked.extend(settle.ack);
                    record.results.extend(settle.ack_with_result);
                    record.failed.extend(settle.fail);
                    record.refused.extend(settle.refuse);
                    record.extended.extend(settle.extend);
                });
            }
        }
    }
}

/// Returns a delivery with a fire of its own and a lease of half a minute.
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

/// Returns a delivery whose lease ends soon.
pub(crate) fn delivery_with_short_lease(token: u64) -> v1::Delivery {
    v1::Delivery { lease_ms: 60, ..delivery(token) }
}

/// Starts brokers whose topology has all of them.
pub(crate) async fn start_cluster(count: usize) -> Vec<FakeBroker> {
    let mut brokers = Vec::new();
    for number in 0..count {
        let broker = FakeBroker::start().await;
        broker.record().run = format!("run-{number}");
        brokers.push(broker);
    }
    let addresses: Vec<_> = brokers.iter().map(|broker| broker.address.to_string()).collect();
    set_topology(&brokers, &addresses);
    brokers
}

/// Sets the topology that brokers report.
pub(crate) fn set_topology(brokers: &[FakeBroker], addresses: &[String]) {
    for broker in brokers {
        broker.record().topology = addresses.to_vec();
    }
}
