//! Registering: a worker has a session with each broker, as long as there is that broker.
//!
//! In: the addresses of the brokers, whenever they change, and the wish to stop. Out: what all sessions did.
//! Invariants: an address has one session at a time; one whose address is gone finishes what it has and leaves; a broken one is opened again by
//! itself, with growing pauses. A broker that refuses ends the worker only if the caller gave its address: what a topology says may lead anywhere.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::session::{Ended, Sessions};
use super::share::{Number, Shares};
use super::{Worked, Worker};
use crate::clock::Backoff;
use crate::error::{Error, Failing};
use crate::places::Address;

/// Streams that a worker that is leaving opens to say what it has not said: with the pauses about three seconds.
const FAREWELLS_MAX: u32 = 6;

/// Works until `stop` is ready.
pub(super) async fn run(
    worker: Arc<Worker>,
    stop: impl Future<Output = ()>,
) -> Result<Worked, Error> {
    let mut stop = pin!(stop);
    let mut addresses = worker.how.namespace.client().brokers().watch();
    let mut register = Register::new(worker);
    let mut wanted = addresses.borrow_and_update().clone();
    let mut stopping = false;
    register.keep(&wanted);
    loop {
        tokio::select! {
            () = stop.as_mut(), if !stopping => {
                stopping = true;
                register.keep(&[]);
            }
            changed = addresses.changed(), if !stopping => {
                if changed.is_ok() {
                    wanted = addresses.borrow_and_update().clone();
                    register.keep(&wanted);
                }
            }
            ended = register.ended() => match ended {
                // It may be wanted again since it was told to leave.
                Some(Ok(())) if !stopping => register.keep(&wanted),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    stopping = true;
                    register.refused = Some(error);
                    register.keep(&[]);
                }
                None => return register.refused.map_or(Ok(register.worked), Err),
            }
        }
    }
}

struct Register {
    worker: Arc<Worker>,
    shares: Arc<Shares>,
    running: JoinSet<(Address, Worked, Option<Error>)>,
    /// Sessions that run, and how each is told to leave; `None` once it was.
    sessions: HashMap<Address, Option<oneshot::Sender<()>>>,
    numbers: Number,
    worked: Worked,
    refused: Option<Error>,
}

impl Register {
    fn new(worker: Arc<Worker>) -> Self {
        let shares = Arc::new(Shares::new(worker.how.concurrency));
        Self {
            worker,
            shares,
            running: JoinSet::new(),
            sessions: HashMap::new(),
            numbers: 0,
            worked: Worked::default(),
            refused: None,
        }
    }

    /// Has sessions with these, and with no others.
    fn keep(&mut self, wanted: &[Address]) {
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
            let session = Session { worker, shares, number: self.numbers };
            self.running.spawn(session.run(Arc::clone(address), left));
        }
    }

    /// When a session has ended; `None` when there is none.
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

/// The sessions with one broker, one after the other.
struct Session {
    worker: Arc<Worker>,
    shares: Arc<Shares>,
    number: Number,
}

impl Session {
    async fn run(
        self,
        address: Address,
        leave: oneshot::Receiver<()>,
    ) -> (Address, Worked, Option<Error>) {
        let mut leave = pin!(async {
            // Whoever ran the worker has let go of it altogether: nobody wants it.
            _ = leave.await;
        });
        let brokers = Arc::clone(self.worker.how.namespace.client().brokers());
        let mut workers = brokers.workers(&address);
        let mut sessions =
            Sessions::new(Arc::clone(&self.worker), Arc::clone(&self.shares), self.number);
        let mut news = self.shares.watch();
        let mut backoff = Backoff::new();
        let mut farewells = 0;
        loop {
            let ended = sessions.run(&mut workers, leave.as_mut()).await;
            self.shares.release(self.number);
            match ended {
                Ended::Left => return (address, sessions.worked(), None),
                Ended::Drained => backoff.reset(),
                Ended::Surplus(run) => {
                    tracing::debug!(%address, "this broker is known by another address");
                    let rest = rest(&self.shares, &mut news, &run);
                    sessions.pause(rest, leave.as_mut()).await;
                }
                Ended::Broken(status) if Failing::of(&status) == Failing::Refused => {
                    if brokers.is_given(&address) {
                        let worked = sessions.finish().await;
                        return (address, worked, Some(Error::from_status(&status)));
                    }
                    tracing::warn!(%address, %status, "a broker of the topology refuses this worker");
                }
                Ended::Broken(status) => {
                    tracing::debug!(%address, %status, "the stream of deliveries ended");
                    if sessions.take_welcomed() {
                        backoff.reset();
                    }
                }
            }
            if sessions.is_stopping() {
                farewells += 1;
                if farewells >= FAREWELLS_MAX || sessions.has_nothing_to_tell() {
                    return (address, sessions.finish().await, None);
                }
                backoff.wait().await;
            } else {
                let pause = backoff.wait();
                sessions.pause(pause, leave.as_mut()).await;
            }
        }
    }
}

/// Until no session is with that run any more.
async fn rest(shares: &Shares, news: &mut watch::Receiver<()>, run: &str) {
    while shares.has(run) {
        if news.changed().await.is_err() {
            return;
        }
    }
}
