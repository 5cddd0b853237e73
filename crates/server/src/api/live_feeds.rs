//! The live feeds of a broker that have listeners. `live` runs them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use punctual_core::Namespace;
use tokio::sync::watch;

use super::measured_second::LiveMessage;

/// The feeds by namespace; `None` is all namespaces.
#[derive(Debug, Default)]
pub(crate) struct LiveFeeds(Mutex<HashMap<Option<Namespace>, watch::Sender<LiveMessage>>>);

/// What a listener gets.
#[derive(Debug)]
pub(super) enum Listening {
    /// The messages of a feed that runs.
    Joined(watch::Receiver<LiveMessage>),
    /// A feed that has to be run, and its messages.
    First(watch::Sender<LiveMessage>, watch::Receiver<LiveMessage>),
}

impl LiveFeeds {
    /// Adds a listener.
    pub(super) fn listen(&self, namespace: &Option<Namespace>) -> Listening {
        let mut feeds = self.lock();
        if let Some(feed) = feeds.get(namespace) {
            let mut messages = feed.subscribe();
            // The last message is new to this listener.
            messages.mark_changed();
            return Listening::Joined(messages);
        }
        let (feed, messages) = watch::channel(None);
        feeds.insert(namespace.clone(), feed.clone());
        Listening::First(feed, messages)
    }

    /// Removes a feed without listeners. Returns whether it is removed.
    pub(super) fn remove_unused(&self, namespace: &Option<Namespace>) -> bool {
        let mut feeds = self.lock();
        let is_unused = feeds.get(namespace).is_none_or(|feed| feed.receiver_count() == 0);
        if is_unused {
            feeds.remove(namespace);
        }
        is_unused
    }

    pub(super) fn remove(&self, namespace: &Option<Namespace>) {
        self.lock().remove(namespace);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<Namespace>, watch::Sender<LiveMessage>>> {
        // Every update is a single step, so the value is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_is_run_for_its_first_listener_and_removed_after_its_last() {
        let feeds = LiveFeeds::default();
        let Listening::First(_feed, first) = feeds.listen(&None) else { panic!("a feed") };
        let Listening::Joined(second) = feeds.listen(&None) else { panic!("the same feed") };
        assert!(second.has_changed().unwrap());
        drop(first);
        assert!(!feeds.remove_unused(&None));
        drop(second);
        assert!(feeds.remove_unused(&None));
        assert!(matches!(feeds.listen(&None), Listening::First(..)));
    }
}
