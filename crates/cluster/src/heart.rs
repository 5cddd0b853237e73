//! The heart: when the next heartbeat goes out.
//!
//! In: heartbeats that went out and what came of them, and that there is news. Out: a time. Invariant: one at a time; and a
//! store that does not answer is asked again after a pause, whatever news there is.

use punctual_core::Timestamp;

use crate::terms::{MemberConfig, NEWS_GAP};

#[derive(Debug)]
pub(crate) struct Heart {
    /// The one under way.
    asked_at: Option<Timestamp>,
    last_at: Option<Timestamp>,
    due_at: Timestamp,
    /// The others should hear of it soon.
    news: bool,
    failing: bool,
}

impl Heart {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { asked_at: None, last_at: None, due_at: now, news: false, failing: false }
    }

    /// The others should hear of it soon.
    pub(crate) fn tell(&mut self) {
        self.news = true;
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.asked_at.is_some()
    }

    /// When the next one goes out, unless one is under way.
    pub(crate) fn due_at(&self) -> Option<Timestamp> {
        if self.asked_at.is_some() {
            return None;
        }
        if !self.news || self.failing {
            return Some(self.due_at);
        }
        let soon = self.last_at.map_or(Timestamp::EPOCH, |last| last.after(NEWS_GAP));
        Some(soon.min(self.due_at))
    }

    pub(crate) fn asked(&mut self, now: Timestamp) {
        (self.asked_at, self.last_at, self.news) = (Some(now), Some(now), false);
    }

    /// An answer came; returns when it was asked for. [`Heart::next_at`] follows.
    pub(crate) fn answered(&mut self) -> Option<Timestamp> {
        self.failing = false;
        self.asked_at.take()
    }

    /// Without news, the next one goes out then.
    pub(crate) fn next_at(&mut self, at: Timestamp) {
        self.due_at = at;
    }

    pub(crate) fn failed(&mut self, terms: &MemberConfig, now: Timestamp) {
        // What was not heard is still news.
        (self.failing, self.news, self.asked_at) = (true, true, None);
        self.due_at = now.after(terms.heartbeat_every() / 2);
    }
}
