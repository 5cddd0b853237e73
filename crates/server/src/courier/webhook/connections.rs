//! The pool of connections to receivers.
//!
//! A delivery checks out an idle connection of its key, or the right to open a new one. The number
//! of connections is limited, whether they are being opened, in use or idle. When the limit is
//! reached, the oldest idle connection is closed for a delivery that waits; if none is idle,
//! deliveries wait. Which of them is next, and how many a namespace and one receiver may use, is
//! decided in `shares`.
//!
//! A connection has no task of its own: the delivery that uses it reads and writes. While it is
//! idle, the pool checks from time to time whether its receiver has closed it.
//!
//! `dial` opens connections, and `send` uses them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use punctual_core::Timestamp;
use punctual_engine::{NotSendable, SendPermit};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{interval, timeout};

use super::calls::CallSender;
use super::gate::{GatedStream, SendGate};
use crate::clock::SystemClock;
use crate::shares::{FairQueue, ShareKey};
use crate::telemetry::Telemetry;

/// How long an idle connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How often the pool checks for idle connections that are too old or closed by their receivers.
const IDLE_EVERY: Duration = Duration::from_secs(1);
/// How long a connection may take to become ready for the next request after an answer was read.
const READY_MAX: Duration = Duration::from_millis(100);
/// Idle connections per key: as many as a lane has deliveries in flight.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// The connection that writes requests and reads their answers when it is polled.
pub(super) type PolledConnection =
    Connection<GatedStream<MaybeHttpsStream<TokioIo<TcpStream>>>, Full<Bytes>>;

/// Sends requests on one connection, each through its gate.
#[derive(Debug)]
pub(in crate::courier) struct RequestSender {
    requests: SendRequest<Full<Bytes>>,
    /// `None` after it has ended. Boxed, because senders are moved with every delivery.
    connection: Option<Box<PolledConnection>>,
    gate: SendGate,
}

/// All connections to receivers. Clones share one pool.
#[derive(Debug, Clone)]
pub(in crate::courier) struct ConnectionPool {
    state: Arc<Mutex<ConnectionPoolState>>,
    clock: Arc<SystemClock>,
    telemetry: Telemetry,
}

/// What a delivery gets from the pool: the right to use one connection of its key.
#[derive(Debug)]
pub(in crate::courier) struct Checkout {
    pub(in crate::courier) in_use: InUseGuard,
    /// An idle connection; `None` if one is to be opened.
    pub(in crate::courier) idle: Option<OpenConnection>,
}

/// An open connection. Those of a key are all of one kind.
#[derive(Debug)]
pub(in crate::courier) enum OpenConnection {
    /// To a webhook.
    Webhook(RequestSender),
    /// To a gRPC server.
    Grpc(CallSender),
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

/// Counts one connection of a key as open and in use until dropped. Its connection is closed by
/// then, or is in `idle`.
#[derive(Debug)]
pub(in crate::courier) struct InUseGuard {
    pool: ConnectionPool,
    key: ShareKey,
    /// The connection, if it can be used again, and since when it is idle.
    idle: Option<(OpenConnection, Timestamp)>,
}

#[derive(Debug)]
struct ConnectionPoolState {
    connections_max: usize,
    /// Connections in use and idle ones.
    open: usize,
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
    connection: OpenConnection,
}

impl OpenConnection {
    /// Returns whether the connection has not ended. Notices it if the receiver has closed it.
    fn check_open(&mut self) -> bool {
        match self {
            Self::Webhook(sender) => sender.check_open(),
            Self::Grpc(sender) => sender.check_open(),
        }
    }

    /// Waits until another request can be sent. Returns whether one can.
    async fn ready(&mut self) -> bool {
        match self {
            Self::Webhook(sender) => sender.ready().await,
            Self::Grpc(sender) => sender.ready().await,
        }
    }
}

impl RequestSender {
    pub(super) fn new(
        requests: SendRequest<Full<Bytes>>,
        connection: PolledConnection,
        gate: SendGate,
    ) -> Self {
        Self { requests, connection: Some(Box::new(connection)), gate }
    }

    /// Sends a request, unless its permit forbids it when the first byte is to be written.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        permit: &SendPermit,
    ) -> Result<Response<Incoming>, Unanswered> {
        self.gate.close(permit.clone());
        // The receiver may have closed it while it was idle.
        self.check_open();
        let answer = self.requests.try_send_request(request);
        let mut error = match drive(&mut self.connection, answer).await {
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

    /// Returns whether the connection has not ended. Notices it if the receiver has closed it.
    fn check_open(&mut self) -> bool {
        poll_connection(&mut self.connection, &mut Context::from_waker(Waker::noop()));
        self.connection.is_some()
    }

    /// Waits until another request can be sent. Returns whether one can.
    async fn ready(&mut self) -> bool {
        drive(&mut self.connection, self.requests.ready()).await.is_ok()
    }
}

/// Polls a connection while `work` waits for it.
pub(super) async fn drive<C: Future + Unpin, T>(
    connection: &mut Option<Box<C>>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        poll_connection(connection, context);
        work.as_mut().poll(context)
    })
    .await
}

pub(super) fn poll_connection<C: Future + Unpin>(
    connection: &mut Option<Box<C>>,
    context: &mut Context<'_>,
) {
    // An error also reaches the request that waits for its answer.
    if connection.as_mut().is_some_and(|open| Pin::new(open).poll(context).is_ready()) {
        *connection = None;
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
            queue: FairQueue::new(connections_max),
            idle_of: HashMap::new(),
            idle: BTreeMap::new(),
            last_number: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), clock, telemetry }
    }

    /// Waits for a connection of this key, or for the right to open one. Nothing is lost if the
    /// future is dropped.
    pub(in crate::courier) async fn checkout(&self, key: &ShareKey) -> Checkout {
        let idle = self.change(|state| state.take_at_once(key));
        if idle.is_some() {
            let in_use = InUseGuard { pool: self.clone(), key: key.clone(), idle: None };
            return Checkout { in_use, idle };
        }
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

    /// Starts a task that closes connections that have been idle for too long, or that their
    /// receivers have closed. It ends when all other clones of the pool are dropped.
    pub(super) fn watch(&self) {
        let state = Arc::downgrade(&self.state);
        let (clock, telemetry) = (Arc::clone(&self.clock), self.telemetry.clone());
        tokio::spawn(async move {
            let mut ticks = interval(IDLE_EVERY);
            loop {
                ticks.tick().await;
                let Some(state) = state.upgrade() else { return };
                let pool = Self { state, clock: Arc::clone(&clock), telemetry: telemetry.clone() };
                let now = clock.machine_now();
                pool.serve_waiting(|state| state.close_idle(now));
            }
        });
    }

    /// Changes the state, then gives connections to waiting deliveries, as far as there are any.
    fn serve_waiting(&self, change: impl FnOnce(&mut ConnectionPoolState)) {
        let mut next = self.change(|state| {
            change(state);
            state.next()
        });
        // Sent without the lock: if the receiver is gone, dropping the checkout takes the lock.
        while let Some((waiter, key, idle)) = next {
            let in_use = InUseGuard { pool: self.clone(), key, idle: None };
            drop(waiter.send(Checkout { in_use, idle }));
            next = self.change(ConnectionPoolState::next);
        }
    }

    /// Changes the state, and shows how many connections that has opened or closed.
    fn change<T>(&self, change: impl FnOnce(&mut ConnectionPoolState) -> T) -> T {
        let mut state = self.lock();
        let before = state.open;
        let changed = change(&mut state);
        let after = state.open;
        drop(state);
        if after != before {
            let opened = after.cast_signed() - before.cast_signed();
            self.telemetry.webhook_connection(i64::try_from(opened).unwrap_or_default());
        }
        changed
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WebhookConnection {
    pub(super) const fn new(sender: RequestSender, in_use: InUseGuard) -> Self {
        Self { sender, in_use }
    }

    /// Waits for `work`, which waits for this connection.
    pub(super) async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        drive(&mut self.sender.connection, work).await
    }

    /// Returns the connection to the pool, if it can be used again.
    pub(super) async fn keep(self) {
        let Self { sender, in_use } = self;
        in_use.keep(OpenConnection::Webhook(sender)).await;
    }
}

impl InUseGuard {
    /// Returns a connection to the pool, if it can be used again.
    pub(in crate::courier) async fn keep(mut self, mut connection: OpenConnection) {
        // A receiver may have answered before it has read the whole request; do not wait for that.
        let ready = timeout(READY_MAX, connection.ready()).await;
        if !matches!(ready, Ok(true)) {
            return;
        }
        let now = self.pool.clock.machine_now();
        self.idle = Some((connection, now));
    }
}

impl Drop for InUseGuard {
    fn drop(&mut self) {
        let (key, idle) = (&self.key, self.idle.take());
        self.pool.serve_waiting(|state| {
            match idle {
                Some((connection, since)) => state.keep_idle(key, connection, since),
                None => state.open -= 1,
            }
            state.queue.release(key);
        });
    }
}

impl ConnectionPoolState {
    /// Returns the next waiting delivery with an idle connection of its key, or with `None` if it
    /// may open one. Counts the connection as in use, and a new one as open.
    fn next(&mut self) -> Option<(oneshot::Sender<Checkout>, ShareKey, Option<OpenConnection>)> {
        let key = self.queue.next()?;
        let idle = self.take_idle(&key);
        if idle.is_none() && self.open >= self.connections_max {
            self.close_oldest()?;
        }
        let waiter = self.queue.take(&key)?;
        self.open += usize::from(idle.is_none());
        Some((waiter, key, idle))
    }

    /// Takes an idle connection of a key for a delivery that does not have to wait.
    fn take_at_once(&mut self, key: &ShareKey) -> Option<OpenConnection> {
        let has_idle = self.idle_of.contains_key(key);
        (has_idle && self.queue.try_take(key)).then(|| self.take_idle(key)).flatten()
    }

    /// Takes the idle connection that was used last, so that the others age and are closed.
    fn take_idle(&mut self, key: &ShareKey) -> Option<OpenConnection> {
        let idle = self.idle_of.get_mut(key)?;
        let taken = idle.pop_back();
        if idle.is_empty() {
            self.idle_of.remove(key);
        }
        let IdleConnection { number, connection, .. } = taken?;
        self.idle.remove(&number);
        Some(connection)
    }

    fn keep_idle(&mut self, key: &ShareKey, connection: OpenConnection, since: Timestamp) {
        self.last_number += 1;
        let number = self.last_number;
        let idle = self.idle_of.entry(key.clone()).or_default();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push_back(IdleConnection { number, since, connection });
            self.idle.insert(number, key.clone());
        } else {
            self.open -= 1;
        }
    }

    /// Closes the connections that have been idle for too long, and removes those that their
    /// receivers have closed.
    fn close_idle(&mut self, now: Timestamp) {
        let before = self.idle.len();
        let numbers = &mut self.idle;
        self.idle_of.retain(|_, idle| {
            idle.retain_mut(|idle| {
                let keep = now.since(idle.since) < IDLE_MAX && idle.connection.check_open();
                if !keep {
                    numbers.remove(&idle.number);
                }
                keep
            });
            !idle.is_empty()
        });
        self.open -= before - self.idle.len();
    }

    /// Closes the oldest idle connection; `None` if there is none.
    fn close_oldest(&mut self) -> Option<()> {
        let (_, key) = self.idle.pop_first()?;
        let idle = self.idle_of.get_mut(&key)?;
        idle.pop_front()?;
        if idle.is_empty() {
            self.idle_of.remove(&key);
        }
        self.open -= 1;
        Some(())
    }
}
