//! Places: where brokers may be asked, and which of them is asked next.
//!
//! In: the addresses that the caller gave, what a topology says, and which of them answered or did not. Out: one address.
//! Invariants: what the caller gave is never forgotten, because it is what this client is known to reach; whoever answers goes on being
//! asked; one that failed is asked again only after a rest, or when all others failed too.
//! Not here: network and time (`brokers`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Where a broker is, as a URL.
pub(crate) type BrokerAddress = Arc<str>;

/// How long one that failed is passed over while there are others.
pub(crate) const FAILED_FOR: Duration = Duration::from_secs(2);
/// Addresses that are learned: more brokers than any cluster should have.
pub(crate) const LEARNED_MAX: usize = 256;

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// Another one is there to be asked.
    AtOnce,
    /// All have failed lately.
    AfterPause,
}

/// Where brokers may be asked.
#[derive(Debug)]
pub(crate) struct AddressList {
    given: Vec<BrokerAddress>,
    learned: Vec<BrokerAddress>,
    failed_until: HashMap<BrokerAddress, Instant>,
    current: BrokerAddress,
}

impl AddressList {
    /// With the first address, and further ones.
    pub(crate) fn new(
        first: BrokerAddress,
        others: impl IntoIterator<Item = BrokerAddress>,
    ) -> Self {
        let mut given = vec![Arc::clone(&first)];
        for address in others {
            if !given.contains(&address) {
                given.push(address);
            }
        }
        Self { given, learned: Vec::new(), failed_until: HashMap::new(), current: first }
    }

    /// Whom to ask.
    pub(crate) fn current(&self) -> &BrokerAddress {
        &self.current
    }

    /// All, the given ones first.
    pub(crate) fn all(&self) -> Vec<BrokerAddress> {
        let learned = self.learned.iter().filter(|address| !self.given.contains(address));
        self.given.iter().chain(learned).cloned().collect()
    }

    /// Whether the caller gave this address.
    pub(crate) fn is_given(&self, address: &str) -> bool {
        self.given.iter().any(|given| **given == *address)
    }

    /// What a topology says. A sole broker is the one that was given, by whatever name. True if it changes anything.
    pub(crate) fn learn(&mut self, mut addresses: Vec<BrokerAddress>) -> bool {
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(LEARNED_MAX);
        if addresses.len() < 2 {
            addresses.clear();
        }
        if addresses == self.learned {
            return false;
        }
        self.learned = addresses;
        let all = self.all();
        self.failed_until.retain(|address, _| all.contains(address));
        if !all.contains(&self.current) {
            self.current = Arc::clone(&self.given[0]);
        }
        true
    }

    /// One answered, whatever it said.
    pub(crate) fn answered(&mut self, address: &BrokerAddress) {
        self.failed_until.remove(address);
    }

    /// One did not answer, or is about to stop.
    pub(crate) fn failed(&mut self, address: &BrokerAddress, now: Instant) -> AfterFailure {
        self.failed_until.insert(Arc::clone(address), now + FAILED_FOR);
        if *address == self.current {
            let all = self.all();
            let index = all.iter().position(|other| other == address).unwrap_or(0);
            let after = || (1..=all.len()).map(|step| &all[(index + step) % all.len()]);
            let next =
                after().find(|other| !self.failed_recently(other, now)).or_else(|| after().next());
            self.current = Arc::clone(next.unwrap_or(address));
        }
        if self.failed_recently(&self.current, now) {
            AfterFailure::AfterPause
        } else {
            AfterFailure::AtOnce
        }
    }

    fn failed_recently(&self, address: &BrokerAddress, now: Instant) -> bool {
        self.failed_until.get(address).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn address(name: &str) -> BrokerAddress {
        Arc::from(name)
    }

    fn addresses(names: &[&str]) -> Vec<BrokerAddress> {
        names.iter().map(|name| address(name)).collect()
    }

    #[test]
    fn the_next_one_is_asked_at_once_until_all_have_failed() {
        let now = clock::now();
        let mut address_list = AddressList::new(address("a"), addresses(&["b", "c", "a"]));
        assert_eq!(address_list.failed(&address("a"), now), AfterFailure::AtOnce);
        assert_eq!(&**address_list.current(), "b");
        // Somebody else has noticed as well: nothing moves twice.
        assert_eq!(address_list.failed(&address("a"), now), AfterFailure::AtOnce);
        assert_eq!(&**address_list.current(), "b");
        assert_eq!(address_list.failed(&address("b"), now), AfterFailure::AtOnce);
        assert_eq!(address_list.failed(&address("c"), now), AfterFailure::AfterPause);
        assert_eq!(&**address_list.current(), "a");
        // After its rest it is as good as any.
        assert_eq!(address_list.failed(&address("a"), now + FAILED_FOR), AfterFailure::AtOnce);
        assert_eq!(&**address_list.current(), "b");
    }

    #[test]
    fn one_that_answers_goes_on_being_asked() {
        let now = clock::now();
        let mut address_list = AddressList::new(address("a"), addresses(&["b"]));
        address_list.failed(&address("a"), now);
        address_list.answered(&address("b"));
        address_list.answered(&address("a"));
        assert_eq!(&**address_list.current(), "b");
    }

    #[test]
    fn a_sole_place_is_asked_again_after_a_pause() {
        let mut address_list = AddressList::new(address("a"), []);
        assert_eq!(address_list.failed(&address("a"), clock::now()), AfterFailure::AfterPause);
        assert_eq!(&**address_list.current(), "a");
    }

    #[test]
    fn what_was_given_stays_whatever_a_topology_says() {
        let mut address_list = AddressList::new(address("door"), []);
        assert!(!address_list.learn(addresses(&["a"])), "a sole broker is the one that was given");
        assert_eq!(address_list.all(), addresses(&["door"]));
        assert!(address_list.learn(addresses(&["b", "a", "a"])));
        assert!(!address_list.learn(addresses(&["a", "b"])));
        assert_eq!(address_list.all(), addresses(&["door", "a", "b"]));
        assert!(address_list.is_given("door") && !address_list.is_given("a"));
        address_list.failed(&address("door"), clock::now());
        assert_eq!(&**address_list.current(), "a");
        assert!(address_list.learn(addresses(&["b", "c"])));
        assert_eq!(&**address_list.current(), "door", "a has left");
    }
}
