//! Keeps one session with each broker of the topology.
//!
//! A session whose address is gone finishes its deliveries and ends; a broken one is opened again,
//! with growing pauses. A broker that refuses the worker stops it only if the caller gave its
//! address, because addresses of a topology may be wrong.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::concurrency::{ConcurrencyShares, SessionNumber};
use super::session::{BrokerSession, StreamEnd};
use super::{Worker, WorkerCounts};
use crate::brokers::address_list::BrokerAddress;
use crate::clock::Backoff;
use crate::error::{CallFailure, Error};
use crate::wire;

/// How many streams a session that is ending opens to send its last settlements: about three
/// seconds with the pauses.
const LAST_STREAMS_MAX: u32 = 6;

/// Works until `stop` is ready.
pub(super) async fn run(
    worker: Arc<Worker>,
    stop: impl Future<Output = ()>,
) -> Result<WorkerCounts, Error> {
    let mut stop = pin!(stop);
    let mut addresses = worker.options.client.brokers().watch();
    let mut sessions = SessionSet::new(worker);
    let mut wanted = addresses.borrow_and_update().clone();
    let mut stopping = false;
    sessions.set_addresses(&wanted);
    loop {
        tokio::select! {
            () = stop.as_mut(), if !stopping => {
                stopping = true;
                sessions.set_addresses(&[]);
            }
            changed = addresses.changed(), if !stopping => {
                if changed.is_ok() {
                    wanted = addresses.borrow_and_update().clone();
                    sessions.set_addresses(&wanted);
                }
            }
            ended = sessions.ended() => match ended {
                // Its address may be back since the session was asked to end.
                Some(Ok(())) if !stopping => sessions.set_addresses(&wanted),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    stopping = true;
                    sessions.refused = Some(error);
                    sessions.set_addresses(&[]);
                }
                None => return sessions.refused.map_or(Ok(sessions.worked), Err),
            }
        }
    }
}

/// The sessions of a worker.
struct SessionSet {
    worker: Arc<Worker>,
    shares: Arc<ConcurrencyShares>,
    running: JoinSet<(BrokerAddress, WorkerCounts, Option<Error>)>,
    /// Running sessions, each with the sender that ends it; `None` once it was used.
    sessions: HashMap<BrokerAddress, Option<oneshot::Sender<()>>>,
    numbers: SessionNumber,
    worked: WorkerCounts,
    refused: Option<Error>,
}

impl SessionSet {
    fn new(worker: Arc<Worker>) -> Self {
        let shares = Arc::new(ConcurrencyShares::new(worker.options.concurrency));
        Self {
            worker,
            shares,
            running: JoinSet::new(),
            sessions: HashMap::new(),
            numbers: 0,
            worked: WorkerCounts::default(),
            refused: None,
        }
    }

    /// Starts a session with each of these addresses that has none, and ends all others.
    fn set_addresses(&mut self, wanted: &[BrokerAddress]) {
        for (address, leave) in &mut self.sessions {
            if !wanted.contains(address)
                && let Some(leave) = leave.take()
            {
                _ = leave.send(());
            }
        }
        for address in wanted {
            if self.sessions.contains_key(address) {
                continue;
            }
            self.numbers += 1;
            let (leave, left) = oneshot::channel();
            self.sessions.insert(Arc::clone(address), Some(leave));
            let (worker, shares) = (Arc::clone(&self.worker), Arc::clone(&self.shares));
            let session = SessionLoop { worker, shares, number: self.numbers };
            self.running.spawn(session.run(Arc::clone(address), left));
        }
    }

    /// Waits until a session has ended; `None` if there is none.
    async fn ended(&mut self) -> Option<Result<(), Error>> {
        match self.running.join_next().await? {
            Ok((address, worked, refused)) => {
                self.sessions.remove(&address);
                self.worked.add(worked);
                Some(refused.map_or(Ok(()), Err))
            }
            Err(_) => Some(Err(Error::Stopped)),
        }
    }
}

/// Runs the session with one broker, and opens its stream again when it breaks.
struct SessionLoop {
    worker: Arc<Worker>,
    shares: Arc<ConcurrencyShares>,
    number: SessionNumber,
}

impl SessionLoop {
    async fn run(
        self,
        address: BrokerAddress,
        leave: oneshot::Receiver<()>,
    ) -> (BrokerAddress, WorkerCounts, Option<Error>) {
        let mut leave = pin!(async {
            // An error means that the worker was dropped: the session ends as well.
            _ = leave.await;
        });
        let brokers = Arc::clone(self.worker.options.client.brokers());
        let mut workers = brokers.workers(&address);
        let mut session =
            BrokerSession::new(Arc::clone(&self.worker), Arc::clone(&self.shares), self.number);
        let mut shares_changed = self.shares.watch();
        let mut backoff = Backoff::new();
        let mut last_streams = 0;
        loop {
            let ended = session.run(&mut workers, leave.as_mut()).await;
            self.shares.release(self.number);
            match ended {
                StreamEnd::Left => return (address, session.worked(), None),
                StreamEnd::Drained => backoff.reset(),
                StreamEnd::Surplus(run) => {
                    tracing::debug!(%address, "broker has a session under another address");
                    let free = wait_until_free(&self.shares, &mut shares_changed, &run);
                    session.pause(free, leave.as_mut()).await;
                }
                StreamEnd::Broken(status) if CallFailure::of(&status) == CallFailure::Refused => {
                    if brokers.is_given(&address) {
                        let worked = session.finish().await;
                        return (address, worked, Some(wire::error_of_status(&status)));
                    }
                    tracing::warn!(%address, %status, "broker of the topology refused the worker");
                }
                StreamEnd::Broken(status) => {
                    tracing::debug!(%address, %status, "delivery stream ended");
                    if session.take_welcomed() {
                        backoff.reset();
                    }
                }
            }
            if session.is_stopping() {
                last_streams += 1;
                if last_streams >= LAST_STREAMS_MAX || session.has_nothing_to_send() {
                    return (address, session.finish().await, None);
                }
                backoff.wait().await;
            } else {
                let pause = backoff.wait();
                session.pause(pause, leave.as_mut()).await;
            }
        }
    }
}

/// Waits until no session is with this run of a broker.
async fn wait_until_free(
    shares: &ConcurrencyShares,
    shares_changed: &mut watch::Receiver<()>,
    run: &str,
) {
    while shares.has(run) {
        if shares_changed.changed().await.is_err() {
            return;
        }
    }
}
