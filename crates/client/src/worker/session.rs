//! The session with one broker: receives deliveries and sends settlements and credit, on one stream
//! after the other.
//!
//! The session reads while a write waits, so the two sides cannot block each other. Tokens are sent
//! only to the run of the broker that issued them. A stream ends when nothing is in flight and no
//! further delivery can come. If the broker has another session of this worker, this one ends.
//! `sessions` opens the next stream, and `concurrency` decides how many deliveries it may have.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use punctual_proto::v1;
use punctual_proto::v1::broker_message::Message as FromBroker;
use punctual_proto::v1::worker_message::Message as ToBroker;
use punctual_proto::v1::workers_client::WorkersClient;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::attempt::{AttemptDone, AttemptReport, DeliveryOrigin};
use super::concurrency::{ConcurrencyShares, SessionNumber};
use super::outbox::Outbox;
use super::{Worker, WorkerCounts};
use crate::brokers::channel::AuthorizedChannel;
use crate::{clock, wire};

/// Messages queued for the transport: one that is being written and one that is ready.
const OUTGOING_MAX: usize = 2;
/// Reports that are taken from the channel at once. The channel is as long as the concurrency.
const DONE_MAX: usize = 1024;
/// How long a broker may take to welcome a worker, which needs no lookup.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a broker may take to confirm a credit of zero. Afterwards no delivery is expected.
const ZERO_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a broker may take to read the last settlements and end the stream.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How a stream ended.
#[derive(Debug)]
pub(super) enum StreamEnd {
    /// The session ends, and the broker has read all settlements.
    Left,
    /// The broker drains, and has read all settlements.
    Drained,
    /// This run of the broker has another session of this worker, and has read all settlements.
    Surplus(String),
    /// The stream broke.
    Broken(Status),
}

/// The session with one broker, over all its streams.
#[derive(Debug)]
pub(super) struct BrokerSession {
    worker: Arc<Worker>,
    shares: Arc<ConcurrencyShares>,
    /// Changes of the sessions, and so of the shares.
    shares_changed: watch::Receiver<()>,
    number: SessionNumber,
    /// How many deliveries may be in flight with this broker.
    share: u32,
    done: mpsc::Sender<AttemptDone>,
    finished: mpsc::Receiver<AttemptDone>,
    outbox: Outbox,
    /// Deliveries in flight.
    in_flight: usize,
    /// Those of earlier streams, which the broker does not count for the current one.
    in_flight_before: usize,
    session: u64,
    /// Counts the runs of the broker.
    run: u64,
    run_name: Option<String>,
    welcomed: bool,
    stopping: bool,
    /// Whether this run of the broker has another session of this worker.
    surplus: bool,
    worked: WorkerCounts,
}

impl BrokerSession {
    pub(super) fn new(
        worker: Arc<Worker>,
        shares: Arc<ConcurrencyShares>,
        number: SessionNumber,
    ) -> Self {
        let (done, finished) = mpsc::channel(concurrency(&worker));
        Self {
            share: shares.share_of(number),
            shares_changed: shares.watch(),
            worker,
            shares,
            number,
            done,
            finished,
            outbox: Outbox::default(),
            in_flight: 0,
            in_flight_before: 0,
            session: 0,
            run: 0,
            run_name: None,
            welcomed: false,
            stopping: false,
            surplus: false,
            worked: WorkerCounts::default(),
        }
    }

    pub(super) fn worked(&self) -> WorkerCounts {
        self.worked
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    pub(super) fn has_nothing_to_send(&self) -> bool {
        self.in_flight == 0 && !self.outbox.has_unconfirmed()
    }

    /// Whether the broker has welcomed the worker since the last call.
    pub(super) fn take_welcomed(&mut self) -> bool {
        std::mem::take(&mut self.welcomed)
    }

    /// Waits for `pause` or `stop`.
    pub(super) async fn pause(
        &mut self,
        pause: impl Future<Output = ()>,
        stop: Pin<&mut impl Future<Output = ()>>,
    ) {
        let stopped = self.meanwhile(async {
            tokio::select! {
                () = stop => true,
                () = pause => false,
            }
        });
        self.stopping |= stopped.await;
    }

    /// Waits for a future while there is no stream, and takes the reports of handlers meanwhile.
    async fn meanwhile<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                biased;
                output = future.as_mut() => return output,
                Some(done) = self.finished.recv() => {
                    self.shares.give_back(done.count);
                    self.take_done(done);
                }
            }
        }
    }

    /// Waits for the handlers after the last stream, and counts the settlements that were not sent.
    pub(super) async fn finish(&mut self) -> WorkerCounts {
        while self.in_flight > 0 {
            let Some(done) = self.finished.recv().await else { break };
            self.shares.give_back(done.count);
            self.take_done(done);
        }
        self.worked.unsettled += self.outbox.unsent() as u64;
        self.worked
    }

    /// Runs one stream until it ends.
    pub(super) async fn run(
        &mut self,
        workers: &mut WorkersClient<AuthorizedChannel>,
        stop: Pin<&mut impl Future<Output = ()>>,
    ) -> StreamEnd {
        self.session += 1;
        self.surplus = false;
        self.shares_changed.mark_unchanged();
        self.share = self.shares.share_of(self.number);
        self.in_flight_before = self.in_flight;
        let (outgoing, messages) = mpsc::channel(OUTGOING_MAX);
        let hello = self.hello();
        let credit = hello.credit;
        _ = outgoing.try_send(message(ToBroker::Hello(hello)));
        let opened = async {
            let mut incoming = workers.work(ReceiverStream::new(messages)).await?.into_inner();
            let first = incoming.message().await?;
            Ok((incoming, first))
        };
        let (mut incoming, welcome) = match self.meanwhile(timeout(WELCOME_TIMEOUT, opened)).await {
            Ok(Ok((
                incoming,
                Some(v1::BrokerMessage { message: Some(FromBroker::Welcome(received)) }),
            ))) => (incoming, received),
            Ok(Ok(_)) => return StreamEnd::Broken(Status::internal("the broker sent no welcome")),
            Ok(Err(status)) => return StreamEnd::Broken(status),
            Err(_) => {
                return StreamEnd::Broken(Status::deadline_exceeded(
                    "no welcome within the timeout",
                ));
            }
        };
        self.take_welcome(welcome);
        match self.exchange(&outgoing, &mut incoming, credit, stop).await {
            Ok(()) => drop(outgoing),
            Err(status) => return StreamEnd::Broken(status),
        }
        match timeout(LEAVE_TIMEOUT, self.finish_stream(&mut incoming)).await {
            Ok(Ok(())) if self.stopping => StreamEnd::Left,
            Ok(Ok(())) if self.surplus => {
                StreamEnd::Surplus(self.run_name.clone().unwrap_or_default())
            }
            Ok(Ok(())) => StreamEnd::Drained,
            Ok(Err(status)) => StreamEnd::Broken(status),
            Err(_) => {
                StreamEnd::Broken(Status::deadline_exceeded("the broker did not end the stream"))
            }
        }
    }

    /// Exchanges messages until nothing is in flight, all settlements are sent and no further
    /// delivery can come.
    async fn exchange(
        &mut self,
        outgoing: &mpsc::Sender<v1::WorkerMessage>,
        incoming: &mut Streaming<v1::BrokerMessage>,
        mut credit: u32,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Status> {
        let in_flight_max = 2 * concurrency(&self.worker);
        let mut no_more = credit == 0 && self.is_leaving();
        let mut drained = false;
        let mut zero = pin!(clock::after(ZERO_TIMEOUT));
        let mut finished = Vec::with_capacity(DONE_MAX);
        loop {
            let credit_is_due = credit != self.credit() && !drained;
            let is_due = credit_is_due || !self.outbox.is_empty();
            if no_more && !is_due && self.in_flight == 0 {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = stop.as_mut(), if !self.stopping => self.stopping = true,
                _ = self.finished.recv_many(&mut finished, DONE_MAX), if !self.outbox.is_full() => {
                    self.shares.give_back(finished.iter().map(|done| done.count).sum());
                    finished.drain(..).for_each(|done| self.take_done(done));
                }
                permit = outgoing.reserve(), if is_due => {
                    let permit = permit.map_err(|_| Status::cancelled("the stream is closed"))?;
                    if credit_is_due {
                        credit = self.credit();
                        permit.send(message(ToBroker::Credit(credit)));
                        zero.as_mut().reset(clock::now() + ZERO_TIMEOUT);
                    } else {
                        permit.send(message(ToBroker::Settle(self.outbox.take())));
                    }
                }
                received = incoming.message(), if self.in_flight < in_flight_max => {
                    match received?.and_then(|received| received.message) {
                        Some(FromBroker::Deliveries(deliveries)) => self.start(deliveries),
                        Some(FromBroker::Stale(stale)) => self.count_stale(&stale),
                        Some(FromBroker::Rejected(rejected)) => self.count_rejected(&rejected),
                        Some(FromBroker::Credit(0)) => no_more |= self.is_leaving() && credit == 0,
                        Some(FromBroker::Drain(_)) => (no_more, drained) = (true, true),
                        Some(FromBroker::Credit(_) | FromBroker::Welcome(_)) => {}
                        None => return Err(Status::cancelled("the broker ended the stream")),
                    }
                }
                Ok(()) = self.shares_changed.changed() => {
                    self.share = self.shares.share_of(self.number);
                }
                () = &mut zero, if self.is_leaving() && credit == 0 && !no_more => no_more = true,
            }
        }
    }

    /// Waits until the broker has read all settlements and ends the stream.
    async fn finish_stream(
        &mut self,
        incoming: &mut Streaming<v1::BrokerMessage>,
    ) -> Result<(), Status> {
        while let Some(received) = incoming.message().await? {
            match received.message {
                Some(FromBroker::Stale(stale)) => self.count_stale(&stale),
                Some(FromBroker::Rejected(rejected)) => self.count_rejected(&rejected),
                // Too late; they are delivered again.
                Some(FromBroker::Deliveries(late)) => {
                    self.worked.unsettled += late.deliveries.len() as u64;
                }
                _ => {}
            }
        }
        self.outbox.confirm_all();
        Ok(())
    }

    fn count_stale(&mut self, stale: &v1::Stale) {
        self.worked.stale += stale.tokens.len() as u64;
    }

    /// The broker has other limits than this client. They are delivered again when their leases
    /// have ended.
    fn count_rejected(&mut self, rejected: &v1::Rejected) {
        self.worked.unsettled += rejected.acks.len() as u64;
    }

    fn hello(&self) -> v1::Hello {
        let options = &self.worker.options;
        v1::Hello {
            namespace: options.namespace.to_string(),
            queues: options.queues.clone(),
            // Only its welcome tells whether this broker has another session.
            credit: if self.shares.is_alone(self.number) { self.credit() } else { 0 },
            name: options.name.clone(),
        }
    }

    fn is_leaving(&self) -> bool {
        self.stopping || self.surplus
    }

    /// How many deliveries may be in flight on this stream.
    fn credit(&self) -> u32 {
        if self.is_leaving() {
            return 0;
        }
        let before = u32::try_from(self.in_flight_before).unwrap_or(u32::MAX);
        self.share.saturating_sub(before)
    }

    fn take_welcome(&mut self, welcome: v1::Welcome) {
        self.welcomed = true;
        self.surplus = !self.shares.claim(self.number, &welcome.run);
        // A broker that does not name its run gets no token of an earlier stream.
        if !welcome.run.is_empty() && self.run_name.as_ref() == Some(&welcome.run) {
            self.outbox.resend();
            return;
        }
        self.run += 1;
        self.run_name = Some(welcome.run);
        self.worked.unsettled += self.outbox.reset() as u64;
    }

    fn start(&mut self, deliveries: v1::Deliveries) {
        let deliveries: Vec<_> = deliveries.deliveries.into_iter().map(wire::delivery).collect();
        self.in_flight += deliveries.len();
        let report = AttemptReport {
            origin: DeliveryOrigin { session: self.session, run: self.run },
            done: self.done.clone(),
            extend_for: self.worker.options.extend_for,
        };
        if self.shares.try_take(deliveries.len()) {
            return self.worker.work.start(deliveries, &report);
        }
        // Other sessions still have more than their share, or the broker sent more than the credit.
        let mut deliveries = deliveries.into_iter().peekable();
        while deliveries.peek().is_some() {
            let some = deliveries.by_ref().take(concurrency(&self.worker)).collect();
            self.worker.work.start_when_free(some, &report, &self.shares);
        }
    }

    fn take_done(&mut self, done: AttemptDone) {
        self.in_flight -= done.count;
        if done.origin.session != self.session {
            self.in_flight_before = self.in_flight_before.saturating_sub(done.count);
        }
        self.worked.acked += (done.settle.ack.len() + done.settle.ack_with_result.len()) as u64;
        self.worked.failed += done.settle.fail.len() as u64;
        self.worked.refused += done.settle.refuse.len() as u64;
        if done.origin.run == self.run {
            self.outbox.add(done.settle);
        } else {
            self.worked.unsettled += done.count as u64;
        }
    }
}

fn concurrency(worker: &Worker) -> usize {
    usize::try_from(worker.options.concurrency).unwrap_or(usize::MAX)
}

fn message(message: ToBroker) -> v1::WorkerMessage {
    v1::WorkerMessage { message: Some(message) }
}
