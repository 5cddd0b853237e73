//! Connections whose callers have not shown a valid token yet.
//!
//! Such a connection is a stranger. Strangers are limited in number: when there are too many, the
//! one that has been connected longest is closed, but not in its first moments, so that callers
//! that reconnect at the same time are all served. What a stranger sends is read in small pieces,
//! it may send few requests, and the first of them must arrive in time. A valid token ends all of
//! this; from then on the connection counts in the share of its namespace.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::auth::Identity;
use crate::problem::Problem;
use crate::shares::{ShareLimit, SharePermit, WaitBound};

/// Connections without a valid token: with some tens of kilobytes each they take less than 64 MiB.
const STRANGERS_MAX: usize = 512;
/// How long a stranger is not closed in favour of another: longer than a TLS handshake and a first
/// request take on a busy machine.
const STRANGER_TIME_MIN: Duration = Duration::from_secs(1);
/// Timeout of the head of the first request, after the TLS handshake.
pub(super) const FIRST_HEAD_MAX: Duration = Duration::from_secs(30);
/// Requests without a valid token on a stranger's connection, which is then closed when they are
/// answered. It is closed at once after twice as many, because HTTP/2 callers may ignore the first
/// limit and leave the answers unread.
const REQUESTS_MAX: u32 = 32;

/// Which callers a listener has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callers {
    /// All are trusted, because the broker has no tokens.
    Trusted,
    /// They show a token with every request.
    WithToken,
}

/// The connections of a listener: strangers, and the shares of namespaces.
#[derive(Debug, Clone)]
pub(crate) struct Strangers(Arc<StrangerLimits>);

#[derive(Debug)]
struct StrangerLimits {
    callers: Callers,
    strangers_max: usize,
    table: Mutex<StrangerTable>,
    /// Signalled when a stranger leaves the table.
    left: Notify,
    connections: ShareLimit,
}

#[derive(Debug, Default)]
struct StrangerTable {
    last_number: u64,
    /// By number: the first has been connected longest.
    strangers: BTreeMap<u64, (Instant, watch::Sender<ConnectionPhase>)>,
}

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionPhase {
    /// No request has arrived.
    New,
    Open,
    /// Requests in flight are answered, then it is closed.
    Finish,
    /// It is closed now.
    Close,
}

/// What is known about the caller of one connection. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTrust(Arc<TrustState>);

#[derive(Debug)]
struct TrustState {
    limits: Strangers,
    number: u64,
    is_trusted: AtomicBool,
    /// Requests without a valid token, while it is a stranger.
    requests: AtomicU32,
    phase: watch::Sender<ConnectionPhase>,
    /// The share of the namespace whose token was shown first.
    share: Mutex<Option<SharePermit>>,
}

impl Strangers {
    /// Limits the strangers among at most `connections_max` connections.
    pub(super) fn new(callers: Callers, connections_max: usize) -> Self {
        let strangers_max = match callers {
            Callers::Trusted => connections_max,
            Callers::WithToken => STRANGERS_MAX.min(connections_max / 4).max(1),
        };
        let shared = (connections_max - connections_max.min(strangers_max)).max(2);
        let none_waits = WaitBound { callers_max: 0, time_max: Duration::ZERO };
        Self(Arc::new(StrangerLimits {
            callers,
            strangers_max,
            table: Mutex::default(),
            left: Notify::new(),
            connections: ShareLimit::new(shared, "connections", none_waits),
        }))
    }

    /// Adds a connection. If there are too many strangers it closes the oldest one, or waits until
    /// that one has had its time.
    #[expect(clippy::disallowed_methods, reason = "this is a bound of waiting, not a wait")]
    pub(super) async fn enter(&self) -> ConnectionTrust {
        loop {
            let oldest_has_time_until = {
                let mut table = self.lock();
                let now = Instant::now();
                match table.strangers.first_key_value() {
                    Some((_, (since, _)))
                        if table.strangers.len() >= self.0.strangers_max
                            && now < *since + STRANGER_TIME_MIN =>
                    {
                        *since + STRANGER_TIME_MIN
                    }
                    _ => return self.add(&mut table, now),
                }
            };
            // Whether one has left or the oldest has had its time: the table shows it.
            let _ = timeout_at(oldest_has_time_until, self.0.left.notified()).await;
        }
    }

    fn add(&self, table: &mut StrangerTable, now: Instant) -> ConnectionTrust {
        if table.strangers.len() >= self.0.strangers_max
            && let Some((_, (_, phase))) = table.strangers.pop_first()
        {
            tracing::debug!(strangers_max = self.0.strangers_max, "oldest stranger disconnected");
            phase.send_replace(ConnectionPhase::Close);
        }
        table.last_number += 1;
        let (phase, _) = watch::channel(ConnectionPhase::New);
        table.strangers.insert(table.last_number, (now, phase.clone()));
        ConnectionTrust(Arc::new(TrustState {
            limits: self.clone(),
            number: table.last_number,
            is_trusted: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            phase,
            share: Mutex::default(),
        }))
    }

    fn remove(&self, number: u64) {
        self.lock().strangers.remove(&number);
        self.0.left.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, StrangerTable> {
        // Every update is a single step, so the value is consistent even after a panic.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTrust {
    /// Returns whether a valid token was shown on this connection.
    pub(crate) fn is_trusted(&self) -> bool {
        self.0.is_trusted.load(Ordering::Relaxed)
    }

    /// Returns whether the connection is closed after the requests in flight.
    pub(crate) fn is_finishing(&self) -> bool {
        !self.is_trusted() && *self.0.phase.borrow() >= ConnectionPhase::Finish
    }

    /// The head of a request has arrived.
    pub(super) fn head_arrived(&self) {
        if self.is_trusted() {
            return;
        }
        self.enter_phase(ConnectionPhase::Open);
        if self.0.limits.0.callers == Callers::Trusted {
            self.trust();
        }
    }

    /// A request has a valid token. The first one takes a share of the connections; without one the
    /// request is refused and the connection stays a stranger.
    pub(crate) fn identified(&self, identity: &Identity) -> Result<(), Problem> {
        if self.is_trusted() {
            return Ok(());
        }
        let mut share = self.0.share.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(namespace)) = (share.as_ref(), identity.first_namespace()) {
            *share = Some(self.0.limits.0.connections.try_acquire(namespace)?);
        }
        drop(share);
        self.trust();
        Ok(())
    }

    /// A request has no valid token.
    pub(crate) fn not_identified(&self) {
        if self.is_trusted() {
            return;
        }
        let requests = self.0.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if requests >= 2 * REQUESTS_MAX {
            self.enter_phase(ConnectionPhase::Close);
        } else if requests >= REQUESTS_MAX {
            self.enter_phase(ConnectionPhase::Finish);
        }
    }

    fn trust(&self) {
        self.0.is_trusted.store(true, Ordering::Relaxed);
        self.0.limits.remove(self.0.number);
    }

    /// Moves on to a later phase.
    fn enter_phase(&self, next: ConnectionPhase) {
        self.0.phase.send_if_modified(|phase| {
            let is_later = next > *phase;
            *phase = next.max(*phase);
            is_later
        });
    }

    /// Completes when the connection is to end after its requests in flight.
    pub(super) async fn to_finish(&self) {
        let mut phase = self.0.phase.subscribe();
        // The sender is part of `self`, so there is no error.
        let _ = phase.wait_for(|phase| *phase >= ConnectionPhase::Finish).await;
    }

    /// Completes when the connection is to end at once: no request has arrived in time, it had too
    /// many, or another stranger took its turn.
    pub(super) async fn to_close(&self) {
        let mut phase = self.0.phase.subscribe();
        let begun = phase.wait_for(|phase| *phase != ConnectionPhase::New);
        if timeout(FIRST_HEAD_MAX, begun).await.is_err() {
            tracing::debug!("no request arrived in time");
            return;
        }
        let _ = phase.wait_for(|phase| *phase == ConnectionPhase::Close).await;
    }
}

impl Drop for TrustState {
    fn drop(&mut self) {
        if !self.is_trusted.load(Ordering::Relaxed) {
            self.limits.remove(self.number);
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the time of these tests is paused")]
mod tests {
    use punctual_core::Namespace;

    use super::*;
    use crate::auth::Rights;

    fn phase(trust: &ConnectionTrust) -> ConnectionPhase {
        *trust.0.phase.borrow()
    }

    fn of(namespace: &str) -> Identity {
        Identity::Namespaces(vec![(Namespace::new(namespace).unwrap(), Rights::ALL)])
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_stranger_is_closed_after_its_time_and_a_trusted_caller_never() {
        let strangers = Strangers::new(Callers::WithToken, 8);
        let [first, second] = [strangers.enter().await, strangers.enter().await];
        first.identified(&of("a")).unwrap();
        let before = Instant::now();
        let third = strangers.enter().await;
        assert_eq!(before.elapsed(), Duration::ZERO, "one of two was trusted");
        let fourth = strangers.enter().await;
        assert!(before.elapsed() >= STRANGER_TIME_MIN, "the second had its time");
        let phases = [&first, &second, &third, &fourth].map(phase);
        assert_eq!(phases.map(|it| it == ConnectionPhase::Close), [false, true, false, false]);
        second.to_close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_that_leaves_makes_room_at_once() {
        let strangers = Strangers::new(Callers::WithToken, 4);
        let first = strangers.enter().await;
        let before = Instant::now();
        let (second, ()) = tokio::join!(strangers.enter(), async { drop(first) });
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(phase(&second), ConnectionPhase::New);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed_in_time() {
        let strangers = Strangers::new(Callers::Trusted, 4);
        let before = Instant::now();
        strangers.enter().await.to_close().await;
        assert_eq!(before.elapsed().as_secs(), FIRST_HEAD_MAX.as_secs());
        let open = strangers.enter().await;
        open.head_arrived();
        assert!(open.is_trusted(), "a broker without tokens trusts all");
        assert!(timeout(10 * FIRST_HEAD_MAX, open.to_close()).await.is_err());
    }

    #[tokio::test]
    async fn requests_without_a_token_are_counted_until_there_is_one() {
        let strangers = Strangers::new(Callers::WithToken, 64);
        let (stranger, trusted) = (strangers.enter().await, strangers.enter().await);
        trusted.identified(&of("a")).unwrap();
        for number in 1..=2 * REQUESTS_MAX {
            stranger.head_arrived();
            stranger.not_identified();
            trusted.not_identified();
            let want = match number {
                64 => ConnectionPhase::Close,
                32.. => ConnectionPhase::Finish,
                _ => ConnectionPhase::Open,
            };
            assert_eq!(phase(&stranger), want, "{number}");
        }
        stranger.to_finish().await;
        assert_eq!(phase(&trusted), ConnectionPhase::New);
    }

    #[tokio::test]
    async fn a_namespace_has_a_share_of_the_connections_and_admins_have_all() {
        // 8 of 32 are for strangers.
        let strangers = Strangers::new(Callers::WithToken, 32);
        let mut open = Vec::new();
        let refused = loop {
            let trust = strangers.enter().await;
            match trust.identified(&of("hog")) {
                Ok(()) => open.push(trust),
                Err(problem) => break problem,
            }
        };
        assert_eq!(open.len(), 12);
        assert!(refused.detail().contains("the 24 connections"), "{}", refused.detail());
        for identity in [of("shop"), Identity::Admin] {
            strangers.enter().await.identified(&identity).unwrap();
        }
        open.clear();
        strangers.enter().await.identified(&of("hog")).unwrap();
    }
}
