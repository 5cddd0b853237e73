//! Connections to receivers: kept for the next delivery, and bounded all together.
//!
//! In: whom a delivery is for ([`Line`]). Out: a [`Connection`] that is nobody else's, or room to make one ([`Room`]), as soon as there is any.
//! Bound: so many connections at once, whatever they do: being made, in use, idle, being closed. Whoever needs one when there are no more
//! waits; an idle one of somebody else is closed for it, the oldest first.
//! Invariant: no line has more in use than are left for all others together. One receiver that hangs takes half of them, two take a third
//! each, and so on: whoever comes then finds one. Of those who wait, the line with the fewest in use is next.
//! Not here: making connections (`dial`), and what is said on them (`http`).

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

use super::gate::Gate;
use crate::clock::SystemClock;
use crate::telemetry::Telemetry;

/// How long an idle connection is kept, and how often it is looked for such.
const IDLE_MAX: Duration = Duration::from_secs(60);
const IDLE_EVERY: Duration = Duration::from_secs(5);
/// How long a connection may take until the next request can be sent on it, when its answer has been read.
const READY_MAX: Duration = Duration::from_millis(100);
/// Idle connections kept per line: as many as a lane has deliveries under way.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Sends requests on one connection, each through its gate.
#[derive(Debug)]
pub(super) struct Sender {
    requests: SendRequest<Full<Bytes>>,
    gate: Gate,
}

/// Whose deliveries share connections: those of a namespace to one scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Line(pub(super) Namespace, pub(super) Arc<str>);

/// All connections to receivers. Clones are of the same.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    desk: Arc<Mutex<Desk>>,
    clock: Arc<SystemClock>,
    telemetry: Telemetry,
}

/// What a delivery gets.
#[derive(Debug)]
pub(super) enum Found {
    /// One that was used before.
    Connection(Connection),
    /// Nothing but the right to make one.
    Room(Room, Use),
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Nothing of it has left: the lease of its owner was over.
    LeaseOver,
    /// Nothing of it has left: the connection was closed before.
    Unsent(Request<Full<Bytes>>, hyper::Error),
    /// The receiver may have got it.
    Broken(hyper::Error),
}

/// A connection that one delivery has.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sender: Sender,
    usage: Use,
}

/// The right to have a connection open. It goes where the connection goes, and ends with it.
#[derive(Debug)]
pub(super) struct Room {
    connections: Connections,
}

/// That a line has one more in use.
#[derive(Debug)]
pub(super) struct Use {
    connections: Connections,
    line: Line,
}

#[derive(Debug)]
struct Desk {
    connections_max: usize,
    /// Rooms given out.
    open: usize,
    /// Connections that were told to close and have not yet.
    closing: usize,
    in_use: usize,
    /// Those with something in use, idle, or waiting.
    lines: HashMap<Line, State>,
    /// All idle connections, the oldest first.
    idle: BTreeMap<u64, Line>,
    /// All lines with somebody who waits: the one with the fewest in use first, then the one that was served longest ago.
    waiting: BTreeSet<(usize, u64, Line)>,
    /// Counts what happened, for the order of things.
    count: u64,
}

#[derive(Debug, Default)]
struct State {
    in_use: usize,
    idle: VecDeque<Idle>,
    waiting: VecDeque<oneshot::Sender<Found>>,
    /// Its place among those who wait, if it does.
    ticket: u64,
}

#[derive(Debug)]
struct Idle {
    number: u64,
    since: Timestamp,
    sender: Sender,
}

impl Sender {
    pub(super) const fn new(requests: SendRequest<Full<Bytes>>, gate: Gate) -> Self {
        Self { requests, gate }
    }

    /// Sends a request unless the lease is over when its first byte is written.
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
                Some(unsent) => Unanswered::Unsent(unsent, error.into_error()),
                None => Unanswered::Broken(error.into_error()),
            }),
        }
    }
}

impl Connections {
    pub(super) fn new(
        connections_max: usize,
        clock: Arc<SystemClock>,
        telemetry: Telemetry,
    ) -> Self {
        assert!(connections_max > 0, "checked with the configuration");
        let desk = Desk {
            connections_max,
            open: 0,
            closing: 0,
            in_use: 0,
            lines: HashMap::new(),
            idle: BTreeMap::new(),
            waiting: BTreeSet::new(),
            count: 0,
        };
        Self { desk: Arc::new(Mutex::new(desk)), clock, telemetry }
    }

    /// A connection of this line, or room for one. Nothing is lost if the caller stops waiting.
    pub(super) async fn find(&self, line: &Line) -> Found {
        loop {
            let (ask, mut found) = oneshot::channel();
            self.desk().ask(line, ask);
            self.serve();
            if let Ok(found) = found.try_recv() {
                return found;
            }
            let _waits = self.telemetry.webhook_connection_waits();
            if let Ok(found) = found.await {
                return found;
            }
        }
    }

    /// Closes what has been idle for too long, from time to time, as long as there is somebody else who has this.
    pub(super) fn watch(&self) {
        let (desk, clock) = (Arc::downgrade(&self.desk), Arc::clone(&self.clock));
        tokio::spawn(async move {
            let mut looks = interval(IDLE_EVERY);
            loop {
                looks.tick().await;
                let Some(desk) = desk.upgrade() else { return };
                let now = clock.now();
                let mut desk = desk.lock().unwrap_or_else(PoisonError::into_inner);
                while desk.oldest_idle().is_some_and(|since| now.since(since) >= IDLE_MAX) {
                    drop(desk.close_oldest());
                }
            }
        });
    }

    /// Gives to those who wait what there is.
    fn serve(&self) {
        loop {
            let next = self.desk().next();
            // Outside of the lock: whoever waits no more gives it back.
            match next {
                Some((ask, line, idle)) => {
                    let usage = Use { connections: self.clone(), line };
                    let found = match idle {
                        Some(sender) => Found::Connection(Connection { sender, usage }),
                        None => {
                            self.telemetry.webhook_connection(1);
                            Found::Room(Room { connections: self.clone() }, usage)
                        }
                    };
                    drop(ask.send(found));
                }
                None => return,
            }
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    pub(super) const fn new(sender: Sender, usage: Use) -> Self {
        Self { sender, usage }
    }

    /// Keeps it for the next delivery of its line, if it can still be used.
    pub(super) async fn keep(mut self) {
        // A receiver may have answered without taking all of the request: the rest is not waited for.
        let ready = timeout(READY_MAX, self.sender.requests.ready()).await;
        if !matches!(ready, Ok(Ok(()))) {
            return;
        }
        let Self { sender, usage } = self;
        let now = usage.connections.clock.now();
        usage.connections.desk().keep(&usage.line, sender, now);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.connections.telemetry.webhook_connection(-1);
        self.connections.desk().closed();
        self.connections.serve();
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.connections.desk().unused(&self.line);
        self.connections.serve();
    }
}

impl Desk {
    fn ask(&mut self, line: &Line, ask: oneshot::Sender<Found>) {
        let count = self.counted();
        let state = self.lines.entry(line.clone()).or_default();
        if state.waiting.is_empty() {
            state.ticket = count;
            self.waiting.insert((state.in_use, count, line.clone()));
        }
        state.waiting.push_back(ask);
    }

    /// Who is next, and an idle connection of its own, if there is one; otherwise there is room for a new one. Both are counted.
    fn next(&mut self) -> Option<(oneshot::Sender<Found>, Line, Option<Sender>)> {
        loop {
            let (in_use, ticket, line) = self.waiting.first()?.clone();
            let left = self.connections_max.saturating_sub(self.in_use);
            let state = self.lines.get_mut(&line).expect("whoever waits has a line");
            while state.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                state.waiting.pop_front();
            }
            if state.waiting.is_empty() {
                self.waiting.remove(&(in_use, ticket, line.clone()));
                self.forget(&line);
                continue;
            }
            // The first has the fewest in use: if it may not have one more, nobody may.
            if in_use >= left {
                return None;
            }
            let sender = self.take_idle(&line);
            if sender.is_none() && self.open >= self.connections_max {
                if self.closing == 0 {
                    drop(self.close_oldest());
                }
                return None;
            }
            self.open += usize::from(sender.is_none());
            self.in_use += 1;
            self.waiting.remove(&(in_use, ticket, line.clone()));
            let count = self.counted();
            let state = self.lines.get_mut(&line).expect("it was there");
            state.in_use += 1;
            let ask = state.waiting.pop_front().expect("looked at above");
            if !state.waiting.is_empty() {
                state.ticket = count;
                self.waiting.insert((state.in_use, count, line.clone()));
            }
            return Some((ask, line, sender));
        }
    }

    /// The one that was used last: the others grow old.
    fn take_idle(&mut self, line: &Line) -> Option<Sender> {
        let state = self.lines.get_mut(line)?;
        while let Some(Idle { number, sender, .. }) = state.idle.pop_back() {
            self.idle.remove(&number);
            // Its receiver may have closed it.
            if sender.requests.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&mut self, line: &Line, sender: Sender, since: Timestamp) {
        let number = self.counted();
        let Some(state) = self.lines.get_mut(line) else { return };
        if state.idle.len() < IDLE_CONNECTIONS_MAX {
            state.idle.push_back(Idle { number, since, sender });
            self.idle.insert(number, line.clone());
        }
    }

    fn oldest_idle(&self) -> Option<Timestamp> {
        let (_, line) = self.idle.first_key_value()?;
        self.lines.get(line)?.idle.front().map(|idle| idle.since)
    }

    /// It closes when it is dropped, and gives its room back when it has.
    fn close_oldest(&mut self) -> Option<Sender> {
        loop {
            let (_, line) = self.idle.pop_first()?;
            let oldest = self.lines.get_mut(&line)?.idle.pop_front()?;
            self.forget(&line);
            // One that its receiver has closed gives nothing back any more.
            if !oldest.sender.requests.is_closed() {
                self.closing += 1;
                return Some(oldest.sender);
            }
        }
    }

    fn closed(&mut self) {
        self.open -= 1;
        // Which one it was does not matter: there is room again.
        self.closing = self.closing.saturating_sub(1);
    }

    fn unused(&mut self, line: &Line) {
        self.in_use -= 1;
        let Some(state) = self.lines.get_mut(line) else { return };
        if self.waiting.remove(&(state.in_use, state.ticket, line.clone())) {
            self.waiting.insert((state.in_use - 1, state.ticket, line.clone()));
        }
        state.in_use -= 1;
        self.forget(line);
    }

    /// Lets go of a line of which nothing is left.
    fn forget(&mut self, line: &Line) {
        let left =
            |state: &State| state.in_use > 0 || !state.idle.is_empty() || !state.waiting.is_empty();
        if !self.lines.get(line).is_some_and(left) {
            self.lines.remove(line);
        }
    }

    const fn counted(&mut self) -> u64 {
        self.count += 1;
        self.count
    }
}
