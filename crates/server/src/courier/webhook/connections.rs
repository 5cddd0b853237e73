//! The pool of connections to receivers.
//!
//! A delivery checks out an idle connection of its [`ConnectionKey`], or a permit to open a new
//! one. The number of connections is limited, whether they are being opened, in use, idle or
//! closing. When the limit is reached, deliveries wait; the oldest idle connection of another key
//! is closed for them.
//!
//! No key has more connections in use than are left for all other keys together. One receiver that
//! hangs takes half of them, two take a third each, and so on, so that another receiver still finds
//! one. Of the keys that wait, the one with the fewest connections in use is served first.
//!
//! `dial` opens connections, and `send` uses them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use punctual_core::{Clock as _, Namespace, Timestamp};
use punctual_engine::LeaseEnd;
use tokio::sync::oneshot;
use tokio::time::{interval, timeout};

use super::gate::LeaseGate;
use crate::clock::SystemClock;
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
    gate: LeaseGate,
}

/// Deliveries with the same key share connections: those of one namespace to one scheme, host and
/// port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ConnectionKey(pub(super) Namespace, pub(super) Arc<str>);

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
    /// Nothing was sent: the lease of the owner was over.
    LeaseOver,
    /// Nothing was sent: the connection had been closed.
    Unsent(Box<Request<Full<Bytes>>>, hyper::Error),
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
    key: ConnectionKey,
}

#[derive(Debug)]
struct ConnectionPoolState {
    connections_max: usize,
    /// Permits that are held.
    open: usize,
    /// Connections that the pool has dropped and that have not closed yet.
    closing: usize,
    in_use: usize,
    /// The keys that have a connection in use or idle, or a delivery that waits.
    keys: HashMap<ConnectionKey, KeyState>,
    /// All idle connections by number, the oldest first.
    idle: BTreeMap<u64, ConnectionKey>,
    /// All keys with a waiting delivery: the one with the fewest connections in use first, then the
    /// one that has waited longest.
    waiting: BTreeSet<(usize, u64, ConnectionKey)>,
    /// The last number given to an idle connection or a waiting key; numbers define their order.
    last_number: u64,
}

#[derive(Debug, Default)]
struct KeyState {
    in_use: usize,
    idle: VecDeque<IdleConnection>,
    waiting: VecDeque<oneshot::Sender<Checkout>>,
    /// Its number in `ConnectionPoolState::waiting`, while it waits.
    ticket: u64,
}

#[derive(Debug)]
struct IdleConnection {
    number: u64,
    since: Timestamp,
    sender: RequestSender,
}

impl RequestSender {
    pub(super) const fn new(requests: SendRequest<Full<Bytes>>, gate: LeaseGate) -> Self {
        Self { requests, gate }
    }

    /// Sends a request, unless the lease is over when its first byte is to be written.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        lease_end: LeaseEnd,
    ) -> Result<Response<Incoming>, Unanswered> {
        self.gate.close_after(lease_end);
        match self.requests.try_send_request(request).await {
            Ok(response) => Ok(response),
            Err(_) if self.gate.has_refused() => Err(Unanswered::LeaseOver),
            Err(mut error) => Err(match error.take_message() {
                Some(unsent) => Unanswered::Unsent(Box::new(unsent), error.into_error()),
                None => Unanswered::Broken(error.into_error()),
            }),
        }
    }
}

impl ConnectionPool {
    pub(super) fn new(
        connections_max: usize,
        clock: Arc<SystemClock>,
        telemetry: Telemetry,
    ) -> Self {
        assert!(connections_max > 0, "checked with the configuration");
        let state = ConnectionPoolState {
            connections_max,
            open: 0,
            closing: 0,
            in_use: 0,
            keys: HashMap::new(),
            idle: BTreeMap::new(),
            waiting: BTreeSet::new(),
            last_number: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), clock, telemetry }
    }

    /// Waits for a connection of this key, or for a permit to open one. Nothing is lost if the
    /// future is dropped.
    pub(super) async fn checkout(&self, key: &ConnectionKey) -> Checkout {
        loop {
            let (sender, mut receiver) = oneshot::channel();
            self.lock().enqueue(key, sender);
            self.serve_waiting();
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
                let now = clock.now();
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                while state.oldest_idle().is_some_and(|since| now.since(since) >= IDLE_MAX) {
                    drop(state.close_oldest());
                }
            }
        });
    }

    /// Gives connections and permits to waiting deliveries, as far as there are any.
    fn serve_waiting(&self) {
        loop {
            let next = self.lock().next();
            // Sent without the lock: if the receiver is gone, dropping the checkout takes the lock.
            match next {
                Some((waiter, key, idle)) => {
                    let in_use = InUseGuard { pool: self.clone(), key };
                    let checkout = match idle {
                        Some(sender) => Checkout::Reused(WebhookConnection { sender, in_use }),
                        None => {
                            self.telemetry.webhook_connection(1);
                            Checkout::New(ConnectionPermit { pool: self.clone() }, in_use)
                        }
                    };
                    drop(waiter.send(checkout));
                }
                None => return,
            }
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
        let Self { sender, in_use } = self;
        let now = in_use.pool.clock.now();
        in_use.pool.lock().keep_idle(&in_use.key, sender, now);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.pool.telemetry.webhook_connection(-1);
        self.pool.lock().on_closed();
        self.pool.serve_waiting();
    }
}

impl Drop for InUseGuard {
    fn drop(&mut self) {
        self.pool.lock().on_unused(&self.key);
        self.pool.serve_waiting();
    }
}

impl ConnectionPoolState {
    fn enqueue(&mut self, key: &ConnectionKey, waiter: oneshot::Sender<Checkout>) {
        let number = self.next_number();
        let state = self.keys.entry(key.clone()).or_default();
        if state.waiting.is_empty() {
            state.ticket = number;
            self.waiting.insert((state.in_use, number, key.clone()));
        }
        state.waiting.push_back(waiter);
    }

    /// Returns the next waiting delivery with an idle connection of its key, or with `None` if it
    /// may open one. Counts the connection as in use, and a new one as open.
    fn next(
        &mut self,
    ) -> Option<(oneshot::Sender<Checkout>, ConnectionKey, Option<RequestSender>)> {
        loop {
            let (in_use, ticket, key) = self.waiting.first()?.clone();
            let left = self.connections_max.saturating_sub(self.in_use);
            let state = self.keys.get_mut(&key).expect("a waiting key has an entry");
            while state.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                state.waiting.pop_front();
            }
            if state.waiting.is_empty() {
                self.waiting.remove(&(in_use, ticket, key.clone()));
                self.forget(&key);
                continue;
            }
            // The first key has the fewest in use: if it may not have one more, no key may.
            if in_use >= left {
                return None;
            }
            let sender = self.take_idle(&key);
            if sender.is_none() && self.open >= self.connections_max {
                if self.closing == 0 {
                    drop(self.close_oldest());
                }
                return None;
            }
            self.open += usize::from(sender.is_none());
            self.in_use += 1;
            self.waiting.remove(&(in_use, ticket, key.clone()));
            let number = self.next_number();
            let state = self.keys.get_mut(&key).expect("a waiting key has an entry");
            state.in_use += 1;
            let waiter = state.waiting.pop_front().expect("checked above");
            if !state.waiting.is_empty() {
                state.ticket = number;
                self.waiting.insert((state.in_use, number, key.clone()));
            }
            return Some((waiter, key, sender));
        }
    }

    /// Takes the idle connection that was used last, so that the others age and are closed.
    fn take_idle(&mut self, key: &ConnectionKey) -> Option<RequestSender> {
        let state = self.keys.get_mut(key)?;
        while let Some(IdleConnection { number, sender, .. }) = state.idle.pop_back() {
            self.idle.remove(&number);
            // The receiver may have closed it.
            if sender.requests.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn keep_idle(&mut self, key: &ConnectionKey, sender: RequestSender, since: Timestamp) {
        let number = self.next_number();
        let Some(state) = self.keys.get_mut(key) else { return };
        if state.idle.len() < IDLE_CONNECTIONS_MAX {
            state.idle.push_back(IdleConnection { number, since, sender });
            self.idle.insert(number, key.clone());
        }
    }

    fn oldest_idle(&self) -> Option<Timestamp> {
        let (_, key) = self.idle.first_key_value()?;
        self.keys.get(key)?.idle.front().map(|idle| idle.since)
    }

    /// Removes the oldest idle connection. It closes when the returned sender is dropped, and its
    /// permit is released when it has closed.
    fn close_oldest(&mut self) -> Option<RequestSender> {
        loop {
            let (_, key) = self.idle.pop_first()?;
            let oldest = self.keys.get_mut(&key)?.idle.pop_front()?;
            self.forget(&key);
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

    fn on_unused(&mut self, key: &ConnectionKey) {
        self.in_use -= 1;
        let Some(state) = self.keys.get_mut(key) else { return };
        if self.waiting.remove(&(state.in_use, state.ticket, key.clone())) {
            self.waiting.insert((state.in_use - 1, state.ticket, key.clone()));
        }
        state.in_use -= 1;
        self.forget(key);
    }

    /// Removes the entry of a key that has nothing left.
    fn forget(&mut self, key: &ConnectionKey) {
        let has_any = |state: &KeyState| {
            state.in_use > 0 || !state.idle.is_empty() || !state.waiting.is_empty()
        };
        if !self.keys.get(key).is_some_and(has_any) {
            self.keys.remove(key);
        }
    }

    const fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}
