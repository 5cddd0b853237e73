//! `Workers`: one stream each, on which deliveries go and settlements come.
//!
//! In: a hello, then settlements and credit. Out: deliveries up to that credit, and tokens that were stale.
//! Invariants: settlements are read while deliveries wait to be sent, so neither side can hold the other; what waits for a worker
//! that does not read is bounded by its credit. After credit zero is answered nothing more is sent.
//! Next door: who gets what (`courier/hub`).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Invalid, Namespace, Queue};
use punctual_proto::v1;
use punctual_proto::v1::broker_message::Message as Tell;
use punctual_proto::v1::worker_message::Message as Told;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::tasks::namespace;
use super::{admit, convert, drains, who};
use crate::broker::Broker;
use crate::courier::hub::{Heard, Leased, Worker};

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

#[derive(Debug)]
pub(super) struct WorkersDoor {
    broker: Arc<Broker>,
    /// This run of this broker.
    run: String,
}

impl WorkersDoor {
    pub(super) fn new(broker: Arc<Broker>, run: String) -> Self {
        Self { broker, run }
    }
}

#[tonic::async_trait]
impl v1::workers_server::Workers for WorkersDoor {
    type WorkStream = Pin<Box<dyn Stream<Item = Result<v1::BrokerMessage, Status>> + Send>>;

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerMessage>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
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
        let welcome = Tell::Welcome(v1::Welcome { version, run: self.run.clone() });
        let broker = Arc::clone(&self.broker);
        let waiting = VecDeque::from([message(welcome)]);
        let session = Session { broker, namespace, worker, waiting };
        tokio::spawn(session.run(incoming, outgoing));
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

/// One worker's stream.
struct Session {
    broker: Arc<Broker>,
    namespace: Namespace,
    worker: Worker,
    /// What could not be sent yet.
    waiting: VecDeque<v1::BrokerMessage>,
}

impl Session {
    async fn run(
        mut self,
        mut incoming: Streaming<v1::WorkerMessage>,
        outgoing: mpsc::Sender<Result<v1::BrokerMessage, Status>>,
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
        let mut deliveries = Vec::with_capacity(leased.len());
        let mut bytes = 0;
        for leased in leased {
            let delivery = convert::delivery(leased);
            bytes += delivery.payload.len() + delivery.key.len() + DELIVERY_BYTES;
            deliveries.push(delivery);
            if bytes > DELIVERIES_BYTES_MAX {
                bytes = 0;
                self.push(std::mem::take(&mut deliveries));
            }
        }
        self.push(deliveries);
    }

    fn push(&mut self, deliveries: Vec<v1::Delivery>) {
        if !deliveries.is_empty() {
            self.waiting.push_back(message(Tell::Deliveries(v1::Deliveries { deliveries })));
        }
    }

    fn settle(&mut self, settle: v1::Settle) {
        let tokens = convert::tokens(&settle);
        let heard = self.broker.hub.settle(&self.namespace, convert::words(settle));
        let stale = tokens.into_iter().zip(heard).filter(|(_, heard)| *heard == Heard::Stale);
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

fn message(tell: Tell) -> v1::BrokerMessage {
    v1::BrokerMessage { message: Some(tell) }
}
