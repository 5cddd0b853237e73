//! Decides when the next heartbeat is sent.
//!
//! At most one heartbeat is in flight. A change is announced soon, but a store that does not answer
//! is tried again only after a pause.

use punctual_core::Timestamp;

use crate::config::{MemberConfig, NEWS_GAP};

#[derive(Debug)]
pub(crate) struct HeartbeatTimer {
    /// When the heartbeat in flight was sent.
    sent_at: Option<Timestamp>,
    last_at: Option<Timestamp>,
    due_at: Timestamp,
    /// A change should be announced soon.
    news: bool,
    failing: bool,
}

impl HeartbeatTimer {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { sent_at: None, last_at: None, due_at: now, news: false, failing: false }
    }

    /// Requests a heartbeat soon, to announce a change.
    pub(crate) fn announce(&mut self) {
        self.news = true;
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.sent_at.is_some()
    }

    /// Returns when the next heartbeat is due; `None` while one is in flight.
    pub(crate) fn due_at(&self) -> Option<Timestamp> {
        if self.sent_at.is_some() {
            return None;
        }
        if !self.news || self.failing {
            return Some(self.due_at);
        }
        let soon = self.last_at.map_or(Timestamp::EPOCH, |last| last.after(NEWS_GAP));
        Some(soon.min(self.due_at))
    }

    pub(crate) fn sent(&mut self, now: Timestamp) {
        (self.sent_at, self.last_at, self.news) = (Some(now), Some(now), false);
    }

    /// Records an answer. Returns when the heartbeat was sent. The caller sets the next one with
    /// [`HeartbeatTimer::next_at`].
    pub(crate) fn answered(&mut self) -> Option<Timestamp> {
        self.failing = false;
        self.sent_at.take()
    }

    /// Sets when the next heartbeat is due if there is no change to announce.
    pub(crate) fn next_at(&mut self, at: Timestamp) {
        self.due_at = at;
    }

    pub(crate) fn failed(&mut self, config: &MemberConfig, now: Timestamp) {
        // The change in the failed heartbeat is still to be announced.
        (self.failing, self.news, self.sent_at) = (true, true, None);
        self.due_at = now.after(config.heartbeat_every() / 2);
    }
}
