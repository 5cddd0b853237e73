//! `Workers`: one stream each, on which deliveries go and settlements come.
//!
//! In: a hello, then settlements and credit. Out: deliveries up to that credit, and tokens that were stale.
//! Invariants: settlements are read while deliveries wait to be sent, so neither side can hold the other; what waits for a worker
//! that does not read is bounded by its credit. After credit zero is answered nothing more is sent.
//! Next door: who gets what (`courier/hub`).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use punctual_core::{Invalid, Namespace, Queue};
use punctual_proto::v1;
use punctual_proto::v1::broker_message::Message as Tell;
use punctual_proto::v1::worker_message::Message as Told;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::deliveries::{Outgoing, WorkCodec};
use super::tasks::namespace;
use super::{MESSAGE_BYTES_MAX, admit, convert, drains, who};
use crate::broker::Broker;
use crate::courier::queue::{Leased, SettleResult, SettleScope, StreamWorker};

/// Messages on their way to the transport.
const OUTGOING_MAX: usize = 2;
/// Messages that wait for that; while there are more, nothing is read.
const WAITING_MAX: usize = 64;
/// Bytes of deliveries in one message: below the 4 MiB that gRPC clients take by default, with room for the largest payload.
const DELIVERIES_BYTES_MAX: usize = 2 * 1024 * 1024;
/// What a delivery takes besides its payload and its key, at most: ids, names, numbers.
const DELIVERY_BYTES: usize = 512;
/// Queues of one worker: it asks all of their lines.
const QUEUES_MAX: usize = 64;
/// How long a worker may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// The one call of the service.
const WORK: &str = "/punctual.v1.Workers/Work";

/// The service. Written out, because the generated one takes only messages that are built before they are spelled.
#[derive(Debug, Clone)]
pub(super) struct WorkersDoor {
    broker: Arc<Broker>,
    /// This run of this broker.
    run: Arc<str>,
}

impl NamedService for WorkersDoor {
    const NAME: &'static str = v1::workers_server::SERVICE_NAME;
}

impl<B> Service<http::Request<B>> for WorkersDoor
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let door = self.clone();
        Box::pin(async move {
            if request.uri().path() != WORK {
                return Ok(Status::unimplemented("there is one call, Work").into_http());
            }
            let max = Some(MESSAGE_BYTES_MAX);
            let mut grpc = Grpc::new(WorkCodec).apply_max_message_size_config(max, None);
            Ok(grpc.streaming(door, request).await)
        })
    }
}

impl StreamingService<v1::WorkerMessage> for WorkersDoor {
    type Response = Outgoing;
    type ResponseStream = ReceiverStream<Result<Outgoing, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<v1::WorkerMessage>>) -> Self::Future {
        let door = self.clone();
        Box::pin(async move { door.work(request).await })
    }
}

impl WorkersDoor {
    pub(super) fn new(broker: Arc<Broker>, run: String) -> Self {
        Self { broker, run: run.into() }
    }

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerMessage>>,
    ) -> Result<Response<ReceiverStream<Result<Outgoing, Status>>>, Status> {
        let who = who(&self.broker, request.metadata())?;
        let mut incoming = request.into_inner();
        let hello = match timeout(HELLO_TIMEOUT, incoming.message()).await {
            Ok(Ok(Some(v1::WorkerMessage { message: Some(Told::Hello(hello)) }))) => hello,
            Ok(Err(status)) => return Err(status),
            Ok(Ok(_)) => return Err(convert::invalid(Invalid::new("hello", "must come first"))),
            Err(_) => return Err(Status::deadline_exceeded("hello: did not come in time")),
        };
        let namespace = namespace(&hello.namespace)?;
        admit(&who, &namespace)?;
        let queues = queues(&hello.queues).map_err(convert::invalid)?;
        tracing::debug!(%namespace, queues = ?hello.queues, name = hello.name, "a worker has come");
        let worker = self.broker.hub.join(&namespace, &queues, hello.credit as usize);
        let (outgoing, messages) = mpsc::channel(OUTGOING_MAX);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let welcome = Tell::Welcome(v1::Welcome { version, run: self.run.to_string() });
        let broker = Arc::clone(&self.broker);
        let waiting = VecDeque::from([message(welcome)]);
        let session = Session { broker, namespace, worker, waiting };
        tokio::spawn(session.run(incoming, outgoing));
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

/// One worker's stream.
struct Session {
    broker: Arc<Broker>,
    namespace: Namespace,
    worker: StreamWorker,
    /// What could not be sent yet.
    waiting: VecDeque<Outgoing>,
}

impl Session {
    async fn run(
        mut self,
        mut incoming: Streaming<v1::WorkerMessage>,
        outgoing: mpsc::Sender<Result<Outgoing, Status>>,
    ) {
        let mut draining = self.broker.draining.clone();
        let mut drained = false;
        loop {
            tokio::select! {
                permit = outgoing.reserve(), if !self.waiting.is_empty() => {
                    // A worker that is gone: what it has goes on until its lease ends.
                    let Ok(permit) = permit else { return };
                    if let Some(message) = self.waiting.pop_front() {
                        permit.send(Ok(message));
                    }
                }
                leased = self.worker.next(), if self.waiting.is_empty() && !drained => {
                    let Some(leased) = leased else { return };
                    self.deliver(leased);
                }
                told = incoming.message(), if self.waiting.len() < WAITING_MAX => match told {
                    Ok(Some(told)) => {
                        if let Err(status) = self.hear(told) {
                            _ = outgoing.send(Err(status)).await;
                            return;
                        }
                    }
                    Ok(None) => break,
                    Err(_) => return,
                },
                () = drains(&mut draining), if !drained => {
                    drained = true;
                    self.stop_delivering();
                    self.waiting.push_back(message(Tell::Drain(v1::Drain {})));
                }
            }
        }
        // The worker has said all. Ending the stream well tells it that everything was heard.
        for message in self.waiting {
            if outgoing.send(Ok(message)).await.is_err() {
                return;
            }
        }
    }

    fn hear(&mut self, told: v1::WorkerMessage) -> Result<(), Status> {
        match told.message {
            Some(Told::Settle(settle)) => self.settle(settle),
            Some(Told::Credit(0)) => {
                self.stop_delivering();
                self.waiting.push_back(message(Tell::Credit(0)));
            }
            Some(Told::Credit(credit)) => {
                self.worker.set_credit(credit as usize);
                self.waiting.push_back(message(Tell::Credit(credit)));
            }
            Some(Told::Hello(_)) => {
                return Err(convert::invalid(Invalid::new("hello", "must come once")));
            }
            // A message of a later version of the protocol.
            None => {}
        }
        Ok(())
    }

    /// No more from here on: what was handed out already goes first.
    fn stop_delivering(&mut self) {
        self.worker.set_credit(0);
        while let Some(leased) = self.worker.next_now() {
            self.deliver(leased);
        }
    }

    fn deliver(&mut self, leased: Vec<Leased>) {
        let (mut deliveries, mut bytes) = (leased, 0);
        let too_many = |leased: &Leased| {
            let definition = &leased.delivery.definition;
            let key_bytes = definition.key.as_ref().map_or(0, |key| key.as_str().len());
            bytes += definition.payload.bytes().len() + key_bytes + DELIVERY_BYTES;
            bytes > DELIVERIES_BYTES_MAX
        };
        if let Some(last) = deliveries.iter().position(too_many) {
            let rest = deliveries.split_off(last + 1);
            self.waiting.push_back(Outgoing::Deliveries(deliveries));
            return self.deliver(rest);
        }
        if !deliveries.is_empty() {
            self.waiting.push_back(Outgoing::Deliveries(deliveries));
        }
    }

    fn settle(&mut self, settle: v1::Settle) {
        let tokens = convert::tokens(&settle);
        let heard = self
            .broker
            .hub
            .settle(SettleScope::of_namespace(&self.namespace), convert::words(settle));
        let stale =
            tokens.into_iter().zip(heard).filter(|(_, heard)| *heard == SettleResult::Stale);
        let tokens: Vec<u64> = stale.map(|(token, _)| token).collect();
        if !tokens.is_empty() {
            self.waiting.push_back(message(Tell::Stale(v1::Stale { tokens })));
        }
    }
}

fn queues(names: &[String]) -> Result<Vec<Queue>, Invalid> {
    if names.is_empty() || names.len() > QUEUES_MAX {
        return Err(Invalid::new("queues", format!("must be from 1 to {QUEUES_MAX}")));
    }
    let mut queues = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let queue = Queue::new(name);
        let queue = queue.map_err(|it| Invalid::new(format!("queues[{index}]"), it.problem))?;
        // Twice in line would be served twice.
        if !queues.contains(&queue) {
            queues.push(queue);
        }
    }
    Ok(queues)
}

fn message(tell: Tell) -> Outgoing {
    Outgoing::Message(v1::BrokerMessage { message: Some(tell) })
}
