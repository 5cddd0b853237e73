//! The addresses of brokers, and which of them is called next.
//!
//! Addresses that the caller gave are never removed, because the client can reach them; others are
//! learned from topologies. The client stays with an address that answers. One that failed is
//! called again only after [`FAILED_FOR`], or if all others failed as well. Network and time are in
//! `brokers`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The URL of a broker.
pub(crate) type BrokerAddress = Arc<str>;

/// How long an address that failed is avoided while there are others.
pub(crate) const FAILED_FOR: Duration = Duration::from_secs(2);
/// The most addresses that are learned, more than the brokers of any cluster.
pub(crate) const LEARNED_MAX: usize = 256;

/// When to call again after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// At once, because there is another broker to call.
    AtOnce,
    /// After a pause, because all brokers have failed recently.
    AfterPause,
}

/// All known addresses, and the one in use.
#[derive(Debug)]
pub(crate) struct AddressList {
    given: Vec<BrokerAddress>,
    learned: Vec<BrokerAddress>,
    failed_until: HashMap<BrokerAddress, Instant>,
    current: BrokerAddress,
}

impl AddressList {
    /// Makes a list of the addresses that the caller gave.
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

    /// The address to call.
    pub(crate) fn current(&self) -> &BrokerAddress {
        &self.current
    }

    /// All addresses, those that the caller gave first.
    pub(crate) fn all(&self) -> Vec<BrokerAddress> {
        let learned = self.learned.iter().filter(|address| !self.given.contains(address));
        self.given.iter().chain(learned).cloned().collect()
    }

    /// Whether the caller gave this address.
    pub(crate) fn is_given(&self, address: &str) -> bool {
        self.given.iter().any(|given| **given == *address)
    }

    /// Replaces the learned addresses by those of a topology, and returns whether they changed. The
    /// address of a single broker is ignored: it is the one that the caller gave, perhaps under
    /// another name.
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

    /// Records that an address has answered.
    pub(crate) fn answered(&mut self, address: &BrokerAddress) {
        self.failed_until.remove(address);
    }

    /// Records that an address did not answer or is about to stop, and moves on to the next one.
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
    fn the_next_address_is_called_at_once_until_all_have_failed() {
        let now = clock::now();
        let mut address_list = AddressList::new(address("a"), addresses(&["b", "c", "a"]));
        assert_eq!(address_list.failed(&address("a"), now), AfterFailure::AtOnce);
        assert_eq!(&**address_list.current(), "b");
        // A second report of the same failure changes nothing.
        assert_eq!(address_list.failed(&address("a"), now), AfterFailure::AtOnce);
        assert_eq!(&**address_list.current(), "b");
        assert_eq!(address_list.failed(&address("b"), now), AfterFailure::AtOnce);
        assert_eq!(address_list.failed(&address("c"), now), AfterFailure::AfterPause);
        assert_eq!(&**address_list.current(), "a");
        // Some time after its failure an address is used again.
        assert_eq!(address_list.failed(&address("a"), now + FAILED_FOR), AfterFailure::AtOnce);
        assert_eq!(&**address_list.current(), "b");
    }

    #[test]
    fn an_address_that_answers_stays_in_use() {
        let now = clock::now();
        let mut address_list = AddressList::new(address("a"), addresses(&["b"]));
        address_list.failed(&address("a"), now);
        address_list.answered(&address("b"));
        address_list.answered(&address("a"));
        assert_eq!(&**address_list.current(), "b");
    }

    #[test]
    fn a_single_address_is_called_again_after_a_pause() {
        let mut address_list = AddressList::new(address("a"), []);
        assert_eq!(address_list.failed(&address("a"), clock::now()), AfterFailure::AfterPause);
        assert_eq!(&**address_list.current(), "a");
    }

    #[test]
    fn no_topology_removes_an_address_that_the_caller_gave() {
        let mut address_list = AddressList::new(address("given"), []);
        assert!(
            !address_list.learn(addresses(&["a"])),
            "a single broker is the one that was given"
        );
        assert_eq!(address_list.all(), addresses(&["given"]));
        assert!(address_list.learn(addresses(&["b", "a", "a"])));
        assert!(!address_list.learn(addresses(&["a", "b"])));
        assert_eq!(address_list.all(), addresses(&["given", "a", "b"]));
        assert!(address_list.is_given("given") && !address_list.is_given("a"));
        address_list.failed(&address("given"), clock::now());
        assert_eq!(&**address_list.current(), "a");
        assert!(address_list.learn(addresses(&["b", "c"])));
        assert_eq!(&**address_list.current(), "given", "a is not in the topology any more");
    }
}
