//! The pool of connections to receivers.
//!
//! A delivery checks out an idle connection of its key, or a permit to open a new one. The number
//! of connections is limited, whether they are being opened, in use, idle or closing. When the
//! limit is reached, deliveries wait; the oldest idle connection of another key is closed for them.
//! Which of them is next, and how many a namespace and one receiver may use, is decided in
//! `shares`.
//!
//! `dial` opens connections, and `send` uses them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use punctual_core::Timestamp;
use punctual_engine::{NotSendable, SendPermit};
use tokio::sync::oneshot;
use tokio::time::{interval, timeout};

use super::gate::SendGate;
use crate::clock::SystemClock;
use crate::shares::{FairQueue, ShareKey};
use crate::telemetry::Telemetry;

/// How long an idle connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How often the pool checks for idle connections that are too old.
const IDLE_EVERY: Duration = Duration::from_secs(5);
/// How long a connection may take to become ready for the next request after an answer was read.
const READY_MAX: Duration = Duration::from_millis(100);
/// Idle connections per key: as many as a lane has deliveries in flight.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Sends requests on one connection, each through its gate.
#[derive(Debug)]
pub(super) struct RequestSender {
    requests: SendRequest<Full<Bytes>>,
    gate: SendGate,
}

/// All connections to receivers. Clones share one pool.
#[derive(Debug, Clone)]
pub(super) struct ConnectionPool {
    state: Arc<Mutex<ConnectionPoolState>>,
    clock: Arc<SystemClock>,
    telemetry: Telemetry,
}

/// What a delivery gets from the pool.
#[derive(Debug)]
pub(super) enum Checkout {
    /// An idle connection.
    Reused(WebhookConnection),
    /// The permit to open a connection.
    New(ConnectionPermit, InUseGuard),
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Nothing was sent: the owner does not allow it any more.
    NotSendable(NotSendable),
    /// Nothing was sent: the connection had been closed.
    Closed(hyper::Error),
    /// The receiver may have received the request.
    Broken(hyper::Error),
}

/// A connection that one delivery uses.
#[derive(Debug)]
pub(super) struct WebhookConnection {
    pub(super) sender: RequestSender,
    in_use: InUseGuard,
}

/// The permit to have a connection open. Held by the connection until it is closed.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    pool: ConnectionPool,
}

/// Counts one connection of a key as in use until dropped.
#[derive(Debug)]
pub(super) struct InUseGuard {
    pool: ConnectionPool,
    key: ShareKey,
    /// The connection, if it can be used again, and since when it is idle.
    idle: Option<(RequestSender, Timestamp)>,
}

#[derive(Debug)]
struct ConnectionPoolState {
    connections_max: usize,
    /// Permits that are held.
    open: usize,
    /// Connections that the pool has dropped and that have not closed yet.
    closing: usize,
    /// Deliveries that wait for a connection or use one.
    queue: FairQueue<Checkout>,
    /// The idle connections of each key, the oldest first.
    idle_of: HashMap<ShareKey, VecDeque<IdleConnection>>,
    /// The keys of all idle connections by number, the oldest first.
    idle: BTreeMap<u64, ShareKey>,
    /// The last number given to an idle connection.
    last_number: u64,
}

#[derive(Debug)]
struct IdleConnection {
    number: u64,
    since: Timestamp,
    sender: RequestSender,
}

impl RequestSender {
    pub(super) const fn new(requests: SendRequest<Full<Bytes>>, gate: SendGate) -> Self {
        Self { requests, gate }
    }

    /// Sends a request, unless its permit forbids it when the first byte is to be written.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        permit: &SendPermit,
    ) -> Result<Response<Incoming>, Unanswered> {
        self.gate.close(permit.clone());
        let mut error = match self.requests.try_send_request(request).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        if let Some(why) = self.gate.refused() {
            return Err(Unanswered::NotSendable(why));
        }
        match error.take_message() {
            Some(_) => {
                permit.unsend();
                Err(Unanswered::Closed(error.into_error()))
            }
            None => Err(Unanswered::Broken(error.into_error())),
        }
    }
}

impl ConnectionPool {
    pub(super) fn new(
        connections_max: usize,
        clock: Arc<SystemClock>,
        telemetry: Telemetry,
    ) -> Self {
        let state = ConnectionPoolState {
            connections_max,
            open: 0,
            closing: 0,
            queue: FairQueue::new(connections_max),
            idle_of: HashMap::new(),
            idle: BTreeMap::new(),
            last_number: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), clock, telemetry }
    }

    /// Waits for a connection of this key, or for a permit to open one. Nothing is lost if the
    /// future is dropped.
    pub(super) async fn checkout(&self, key: &ShareKey) -> Checkout {
        loop {
            let (sender, mut receiver) = oneshot::channel();
            self.serve_waiting(|state| state.queue.enqueue(key, sender));
            if let Ok(checkout) = receiver.try_recv() {
                return checkout;
            }
            let _waits = self.telemetry.webhook_connection_waits();
            if let Ok(checkout) = receiver.await {
                return checkout;
            }
        }
    }

    /// Starts a task that closes connections that have been idle for too long. It ends when all
    /// other clones of the pool are dropped.
    pub(super) fn watch(&self) {
        let (state, clock) = (Arc::downgrade(&self.state), Arc::clone(&self.clock));
        tokio::spawn(async move {
            let mut ticks = interval(IDLE_EVERY);
            loop {
                ticks.tick().await;
                let Some(state) = state.upgrade() else { return };
                let now = clock.machine_now();
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                while state.oldest_idle().is_some_and(|since| now.since(since) >= IDLE_MAX) {
                    drop(state.close_oldest());
                }
            }
        });
    }

    /// Changes the state, then gives connections and permits to waiting deliveries, as far as there
    /// are any.
    fn serve_waiting(&self, change: impl FnOnce(&mut ConnectionPoolState)) {
        let mut next = {
            let mut state = self.lock();
            change(&mut state);
            state.next()
        };
        // Sent without the lock: if the receiver is gone, dropping the checkout takes the lock.
        while let Some((waiter, key, idle)) = next {
            let in_use = InUseGuard { pool: self.clone(), key, idle: None };
            let checkout = match idle {
                Some(sender) => Checkout::Reused(WebhookConnection { sender, in_use }),
                None => {
                    self.telemetry.webhook_connection(1);
                    Checkout::New(ConnectionPermit { pool: self.clone() }, in_use)
                }
            };
            drop(waiter.send(checkout));
            next = self.lock().next();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WebhookConnection {
    pub(super) const fn new(sender: RequestSender, in_use: InUseGuard) -> Self {
        Self { sender, in_use }
    }

    /// Returns the connection to the pool, if it can be used again.
    pub(super) async fn keep(mut self) {
        // A receiver may have answered before it has read the whole request; do not wait for that.
        let ready = timeout(READY_MAX, self.sender.requests.ready()).await;
        if !matches!(ready, Ok(Ok(()))) {
            return;
        }
        let Self { sender, mut in_use } = self;
        let now = in_use.pool.clock.machine_now();
        in_use.idle = Some((sender, now));
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.pool.telemetry.webhook_connection(-1);
        self.pool.serve_waiting(ConnectionPoolState::on_closed);
    }
}

impl Drop for InUseGuard {
    fn drop(&mut self) {
        let (key, idle) = (&self.key, self.idle.take());
        self.pool.serve_waiting(|state| {
            if let Some((sender, since)) = idle {
                state.keep_idle(key, sender, since);
            }
            state.queue.release(key);
        });
    }
}

impl ConnectionPoolState {
    /// Returns the next waiting delivery with an idle connection of its key, or with `None` if it
    /// may open one. Counts the connection as in use, and a new one as open.
    fn next(&mut self) -> Option<(oneshot::Sender<Checkout>, ShareKey, Option<RequestSender>)> {
        let key = self.queue.next()?;
        let sender = self.take_idle(&key);
        if sender.is_none() && self.open >= self.connections_max {
            if self.closing == 0 {
                drop(self.close_oldest());
            }
            return None;
        }
        let waiter = self.queue.take(&key)?;
        self.open += usize::from(sender.is_none());
        Some((waiter, key, sender))
    }

    /// Takes the idle connection that was used last, so that the others age and are closed.
    fn take_idle(&mut self, key: &ShareKey) -> Option<RequestSender> {
        let idle = self.idle_of.get_mut(key)?;
        let mut taken = None;
        while let Some(IdleConnection { number, sender, .. }) = idle.pop_back() {
            self.idle.remove(&number);
            // The receiver may have closed it.
            if sender.requests.is_ready() {
                taken = Some(sender);
                break;
            }
        }
        if idle.is_empty() {
            self.idle_of.remove(key);
        }
        taken
    }

    fn keep_idle(&mut self, key: &ShareKey, sender: RequestSender, since: Timestamp) {
        self.last_number += 1;
        let number = self.last_number;
        let idle = self.idle_of.entry(key.clone()).or_default();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push_back(IdleConnection { number, since, sender });
            self.idle.insert(number, key.clone());
        }
    }

    fn oldest_idle(&self) -> Option<Timestamp> {
        let (_, key) = self.idle.first_key_value()?;
        self.idle_of.get(key)?.front().map(|idle| idle.since)
    }

    /// Removes the oldest idle connection. It closes when the returned sender is dropped, and its
    /// permit is released when it has closed.
    fn close_oldest(&mut self) -> Option<RequestSender> {
        loop {
            let (_, key) = self.idle.pop_first()?;
            let idle = self.idle_of.get_mut(&key)?;
            let oldest = idle.pop_front()?;
            if idle.is_empty() {
                self.idle_of.remove(&key);
            }
            // A connection that its receiver has closed has already released its permit.
            if !oldest.sender.requests.is_closed() {
                self.closing += 1;
                return Some(oldest.sender);
            }
        }
    }

    fn on_closed(&mut self) {
        self.open -= 1;
        // Which connection it was does not matter: a permit is free again.
        self.closing = self.closing.saturating_sub(1);
    }
}
