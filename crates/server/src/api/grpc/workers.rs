//! The `Workers` service: one stream per worker, with deliveries one way and settlements the other.
//!
//! A worker sends a hello, then settlements and credit. The broker sends deliveries up to that
//! credit, and the tokens that were stale. Settlements are read while deliveries wait to be sent,
//! so neither side blocks the other. What is pending for a worker that does not read is bounded by
//! its credit. After the broker has acknowledged a credit of zero it sends no delivery.
//! `courier/hub` decides which worker gets what.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use punctual_core::{Invalid, Namespace, Queue};
use punctual_proto::v1;
use punctual_proto::v1::broker_message::Message as ToWorker;
use punctual_proto::v1::worker_message::Message as FromWorker;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::caller::{authorize, identify};
use super::deliveries::{OutgoingMessage, WorkCodec};
use super::tasks::namespace;
use super::{MESSAGE_BYTES_MAX, convert, drained};
use crate::broker::Broker;
use crate::courier::queue::{Leased, SettleResult, SettleScope, StreamWorker, WorkerLabel};
use crate::listen::CallerAddress;
use crate::shares::SharePermit;

/// Messages in the channel to the transport.
const OUTGOING_MAX: usize = 2;
/// Messages that wait for that channel. While there are more, nothing is read from the worker.
const WAITING_MAX: usize = 64;
/// Bytes of deliveries in one message: with one more of the largest size it is still below the
/// 4 MiB that gRPC clients accept by default.
const DELIVERIES_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Bytes of a delivery without its payload and its key, at most: ids, names, numbers.
const DELIVERY_BYTES: usize = 512;
/// Queues of one worker.
const QUEUES_MAX: usize = 64;

/// The only method of the service.
const WORK: &str = "/punctual.v1.Workers/Work";

/// The service. It is written by hand because the generated one encodes only generated messages.
#[derive(Debug, Clone)]
pub(super) struct WorkersApi {
    broker: Arc<Broker>,
    /// Identifies this run of the broker: delivery tokens of another run are stale.
    run: Arc<str>,
}

impl NamedService for WorkersApi {
    const NAME: &'static str = v1::workers_server::SERVICE_NAME;
}

impl<B> Service<http::Request<B>> for WorkersApi
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
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != WORK {
                return Ok(Status::unimplemented(
                    "unknown method; the only method of Workers is Work",
                )
                .into_http());
            }
            let max = Some(MESSAGE_BYTES_MAX);
            let codec = WorkCodec { hub: Arc::clone(&service.broker.hub) };
            let mut grpc = Grpc::new(codec).apply_max_message_size_config(max, None);
            Ok(grpc.streaming(service, request).await)
        })
    }
}

impl StreamingService<v1::WorkerMessage> for WorkersApi {
    type Response = OutgoingMessage;
    type ResponseStream = ReceiverStream<Result<OutgoingMessage, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<v1::WorkerMessage>>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { service.work(request).await })
    }
}

impl WorkersApi {
    pub(super) fn new(broker: Arc<Broker>, run: String) -> Self {
        Self { broker, run: run.into() }
    }

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerMessage>>,
    ) -> Result<Response<ReceiverStream<Result<OutgoingMessage, Status>>>, Status> {
        let right = identify(&request)?;
        let address = request.extensions().get::<CallerAddress>().map(|address| address.0);
        let mut incoming = request.into_inner();
        let hello = match incoming.message().await? {
            Some(v1::WorkerMessage { message: Some(FromWorker::Hello(hello)) }) => hello,
            _ => return Err(convert::invalid(Invalid::new("hello", "must come first"))),
        };
        let namespace = namespace(&hello.namespace)?;
        authorize(&right, &namespace)?;
        let queues = queues(&hello.queues).map_err(convert::invalid)?;
        let permit = self.broker.limits.streams.try_acquire(&namespace);
        let permit = permit.map_err(|problem| convert::to_status(&problem))?;
        tracing::debug!(%namespace, queues = ?hello.queues, name = hello.name, "worker connected");
        let address = address.map_or_else(String::new, |address| address.to_string());
        let label = WorkerLabel::new(&hello.name, &address);
        let worker = self.broker.hub.join(&namespace, &queues, hello.credit as usize, label);
        let (outgoing, messages) = mpsc::channel(OUTGOING_MAX);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let welcome = ToWorker::Welcome(v1::Welcome { version, run: self.run.to_string() });
        let broker = Arc::clone(&self.broker);
        let waiting = VecDeque::from([message(welcome)]);
        let stream = WorkerStream { broker, namespace, worker, waiting, _permit: permit };
        tokio::spawn(stream.run(incoming, outgoing));
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

/// The stream of one worker.
struct WorkerStream {
    broker: Arc<Broker>,
    namespace: Namespace,
    worker: StreamWorker,
    /// Messages that wait for the channel.
    waiting: VecDeque<OutgoingMessage>,
    _permit: SharePermit,
}

impl WorkerStream {
    async fn run(
        mut self,
        mut incoming: Streaming<v1::WorkerMessage>,
        outgoing: mpsc::Sender<Result<OutgoingMessage, Status>>,
    ) {
        let mut draining = self.broker.draining.clone();
        let mut is_drained = false;
        loop {
            tokio::select! {
                permit = outgoing.reserve(), if !self.waiting.is_empty() => {
                    // The worker is gone; what it has leased stays leased until the lease ends.
                    let Ok(permit) = permit else { return };
                    if let Some(message) = self.waiting.pop_front() {
                        permit.send(Ok(message));
                    }
                }
                leased = self.worker.next(), if self.waiting.is_empty() && !is_drained => {
                    let Some(leased) = leased else { return };
                    self.deliver(leased);
                }
                message = incoming.message(), if self.waiting.len() < WAITING_MAX => match message {
                    Ok(Some(message)) => {
                        if let Err(status) = self.receive(message) {
                            _ = outgoing.send(Err(status)).await;
                            return;
                        }
                    }
                    Ok(None) => break,
                    // A message that does not arrive in time, for example.
                    Err(status) => {
                        _ = outgoing.send(Err(status)).await;
                        return;
                    }
                },
                () = drained(&mut draining), if !is_drained => {
                    is_drained = true;
                    self.stop_delivering();
                    self.waiting.push_back(message(ToWorker::Drain(v1::Drain {})));
                }
            }
        }
        // The worker has sent everything. A stream that ends without error acknowledges all of it.
        for message in self.waiting {
            if outgoing.send(Ok(message)).await.is_err() {
                return;
            }
        }
    }

    fn receive(&mut self, received: v1::WorkerMessage) -> Result<(), Status> {
        match received.message {
            Some(FromWorker::Settle(settle)) => self.settle(settle),
            Some(FromWorker::Credit(0)) => {
                self.stop_delivering();
                self.waiting.push_back(message(ToWorker::Credit(0)));
            }
            Some(FromWorker::Credit(credit)) => {
                self.worker.set_credit(credit as usize);
                self.waiting.push_back(message(ToWorker::Credit(credit)));
            }
            Some(FromWorker::Hello(_)) => {
                return Err(convert::invalid(Invalid::new("hello", "must be sent once")));
            }
            // An unknown message of a later version of the protocol.
            None => {}
        }
        Ok(())
    }

    /// Stops leasing; sends what was leased already.
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
            self.waiting.push_back(OutgoingMessage::Deliveries(deliveries));
            return self.deliver(rest);
        }
        if !deliveries.is_empty() {
            self.waiting.push_back(OutgoingMessage::Deliveries(deliveries));
        }
    }

    fn settle(&mut self, mut settle: v1::Settle) {
        let with_result = std::mem::take(&mut settle.ack_with_result);
        let (with_result, rejected) = convert::acks_with_result(with_result);
        if !rejected.is_empty() {
            let rejected = v1::Rejected { acks: rejected };
            self.waiting.push_back(message(ToWorker::Rejected(rejected)));
        }
        let mut tokens: Vec<u64> = with_result.iter().map(|(token, _)| token.0).collect();
        tokens.extend(convert::tokens(&settle));
        let scope = SettleScope::of_namespace(&self.namespace);
        let settlements = with_result.into_iter().chain(convert::settlements(settle));
        let results = self.broker.hub.settle(scope, settlements);
        let stale =
            tokens.into_iter().zip(results).filter(|(_, result)| *result == SettleResult::Stale);
        let tokens: Vec<u64> = stale.map(|(token, _)| token).collect();
        if !tokens.is_empty() {
            self.waiting.push_back(message(ToWorker::Stale(v1::Stale { tokens })));
        }
    }
}

fn queues(names: &[String]) -> Result<Vec<Queue>, Invalid> {
    if names.is_empty() || names.len() > QUEUES_MAX {
        return Err(Invalid::new("queues", format!("must have 1 to {QUEUES_MAX} entries")));
    }
    let mut queues = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let queue = Queue::new(name);
        let queue = queue.map_err(|it| Invalid::new(format!("queues[{index}]"), it.problem))?;
        // A queue that is named twice would get twice its share.
        if !queues.contains(&queue) {
            queues.push(queue);
        }
    }
    Ok(queues)
}

fn message(message: ToWorker) -> OutgoingMessage {
    OutgoingMessage::Message(v1::BrokerMessage { message: Some(message) })
}
