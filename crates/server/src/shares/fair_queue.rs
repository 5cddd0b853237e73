//! The queue for a limited resource: who may have one more, and who is next.
//!
//! No namespace has more than is left for all others together: one that hangs has a half, two have
//! a third each, and so on, so that another namespace still finds one. Within a namespace, no part
//! (such as one receiver) has more than are left for the other parts of what the namespace may
//! take. Of the namespaces that wait, the one with the fewest in use is next; then, in the same
//! way, of its parts.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use punctual_core::Namespace;
use tokio::sync::oneshot;

/// What a permit is for: a namespace, and the part of it that shares with its other parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShareKey {
    namespace: Namespace,
    part: Option<Arc<str>>,
}

impl ShareKey {
    /// A namespace without parts.
    pub(crate) const fn of(namespace: Namespace) -> Self {
        Self { namespace, part: None }
    }

    /// A part of a namespace, for example the host that a webhook calls.
    pub(crate) fn part(namespace: Namespace, part: &str) -> Self {
        Self { namespace, part: Some(part.into()) }
    }
}

/// Those that wait for a resource and those that use it. Each that waits is sent a `T` by the
/// caller when it is next.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    total: usize,
    in_use: usize,
    namespaces: HashMap<Namespace, NamespaceShare<T>>,
    /// The namespaces that wait, by how many they use, then by ticket.
    waiting: BTreeSet<(usize, Ticket, Namespace)>,
    last_ticket: Ticket,
}

/// Numbers that grow: a lower one has waited longer.
type Ticket = u64;

#[derive(Debug)]
struct NamespaceShare<T> {
    in_use: usize,
    /// Its ticket in `FairQueue::waiting`, while it waits.
    ticket: Ticket,
    parts: HashMap<Option<Arc<str>>, PartShare<T>>,
    /// The parts that wait, by how many they use, then by ticket.
    waiting: BTreeSet<(usize, Ticket, Option<Arc<str>>)>,
}

#[derive(Debug)]
struct PartShare<T> {
    in_use: usize,
    /// Its ticket in `NamespaceShare::waiting`, while it waits.
    ticket: Ticket,
    waiting: VecDeque<oneshot::Sender<T>>,
}

impl<T> FairQueue<T> {
    pub(crate) fn new(total: usize) -> Self {
        assert!(total > 0, "the caller checks its configuration");
        Self {
            total,
            in_use: 0,
            namespaces: HashMap::new(),
            waiting: BTreeSet::new(),
            last_ticket: 0,
        }
    }

    /// Lets `waiter` wait. If its receiver is dropped, it no longer waits.
    pub(crate) fn enqueue(&mut self, key: &ShareKey, waiter: oneshot::Sender<T>) {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let share = self.namespaces.entry(key.namespace.clone()).or_default();
        if share.waiting.is_empty() {
            share.ticket = ticket;
            self.waiting.insert((share.in_use, ticket, key.namespace.clone()));
        }
        let part = share.parts.entry(key.part.clone()).or_default();
        if part.waiting.is_empty() {
            part.ticket = ticket;
            share.waiting.insert((part.in_use, ticket, key.part.clone()));
        }
        part.waiting.push_back(waiter);
    }

    /// Returns how many wait under a key. Those whose receivers are dropped are removed.
    pub(crate) fn count_waiting(&mut self, key: &ShareKey) -> usize {
        let share = self.namespaces.get_mut(&key.namespace);
        let Some(part) = share.and_then(|share| share.parts.get_mut(&key.part)) else { return 0 };
        part.waiting.retain(|waiter| !waiter.is_closed());
        part.waiting.len()
    }

    /// Returns the key that is next, if it may have one more; the caller then takes its waiter, or
    /// leaves it waiting.
    pub(crate) fn next(&mut self) -> Option<ShareKey> {
        let left = self.total.saturating_sub(self.in_use);
        let mut after = Bound::Unbounded;
        loop {
            let entry = self.waiting.range((after, Bound::Unbounded)).next()?.clone();
            let (in_use, _, namespace) = &entry;
            // The others use as many or more: if this one may not have one more, none may.
            if *in_use >= left {
                return None;
            }
            // With each one that the namespace takes, it has one more and one less is left.
            let left_to_parts = (left - in_use).div_ceil(2);
            let share = self.namespaces.get_mut(namespace)?;
            let key = match share.next(left_to_parts) {
                NextPart::Part(part) => Some(ShareKey { namespace: namespace.clone(), part }),
                // Another namespace may still have one.
                NextPart::NoneMay => None,
                NextPart::NoneWaits => {
                    self.waiting.remove(&entry);
                    self.forget(&entry.2);
                    None
                }
            };
            if key.is_some() {
                return key;
            }
            after = Bound::Excluded(entry);
        }
    }

    /// Counts one more as using the resource if a key may have it, some of this key are in use
    /// already, and no key waits. Otherwise the caller has to wait; the answer may come at once.
    pub(crate) fn try_take(&mut self, key: &ShareKey) -> bool {
        if !self.waiting.is_empty() {
            return false;
        }
        let left = self.total.saturating_sub(self.in_use);
        let Some(share) = self.namespaces.get_mut(&key.namespace) else { return false };
        let Some(part) = share.parts.get_mut(&key.part) else { return false };
        if share.in_use >= left {
            return false;
        }
        let left_to_parts = (left - share.in_use).div_ceil(2);
        if key.part.is_some() && part.in_use >= left_to_parts {
            return false;
        }
        self.in_use += 1;
        share.in_use += 1;
        part.in_use += 1;
        true
    }

    /// Takes the first that waits under a key and counts it as using the resource.
    pub(crate) fn take(&mut self, key: &ShareKey) -> Option<oneshot::Sender<T>> {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let share = self.namespaces.get_mut(&key.namespace)?;
        let part = share.parts.get_mut(&key.part)?;
        let waiter = part.waiting.pop_front()?;
        // The next waiter of this key is behind those that wait already.
        share.waiting.remove(&(part.in_use, part.ticket, key.part.clone()));
        self.waiting.remove(&(share.in_use, share.ticket, key.namespace.clone()));
        self.in_use += 1;
        share.in_use += 1;
        part.in_use += 1;
        if !part.waiting.is_empty() {
            part.ticket = ticket;
            share.waiting.insert((part.in_use, ticket, key.part.clone()));
        }
        if !share.waiting.is_empty() {
            share.ticket = ticket;
            self.waiting.insert((share.in_use, ticket, key.namespace.clone()));
        }
        Some(waiter)
    }

    /// One that was taken no longer uses the resource.
    pub(crate) fn release(&mut self, key: &ShareKey) {
        let Some(share) = self.namespaces.get_mut(&key.namespace) else { return };
        let Some(part) = share.parts.get_mut(&key.part) else { return };
        self.in_use -= 1;
        let entry = (part.in_use, part.ticket, key.part.clone());
        part.in_use -= 1;
        if share.waiting.remove(&entry) {
            share.waiting.insert((part.in_use, part.ticket, key.part.clone()));
        }
        let entry = (share.in_use, share.ticket, key.namespace.clone());
        share.in_use -= 1;
        if self.waiting.remove(&entry) {
            self.waiting.insert((share.in_use, share.ticket, key.namespace.clone()));
        }
        if part.in_use == 0 && part.waiting.is_empty() {
            share.parts.remove(&key.part);
        }
        self.forget(&key.namespace);
    }

    /// Removes the entry of a namespace that neither uses the resource nor waits.
    fn forget(&mut self, namespace: &Namespace) {
        if self.namespaces.get(namespace).is_some_and(|share| share.parts.is_empty()) {
            self.namespaces.remove(namespace);
        }
    }
}

/// The part of a namespace that is next.
enum NextPart {
    Part(Option<Arc<str>>),
    /// Every part that waits has as many as it may.
    NoneMay,
    NoneWaits,
}

impl<T> NamespaceShare<T> {
    fn next(&mut self, left: usize) -> NextPart {
        while let Some(entry @ (in_use, _, name)) = self.waiting.first() {
            let Some(part) = self.parts.get_mut(name) else { return NextPart::NoneWaits };
            while part.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                part.waiting.pop_front();
            }
            if part.waiting.is_empty() {
                let (entry, in_use) = (entry.clone(), part.in_use);
                self.waiting.remove(&entry);
                if in_use == 0 {
                    self.parts.remove(&entry.2);
                }
                continue;
            }
            // A namespace without parts has the bound of the namespace alone.
            return match name.is_none() || *in_use < left {
                true => NextPart::Part(name.clone()),
                false => NextPart::NoneMay,
            };
        }
        NextPart::NoneWaits
    }
}

impl<T> Default for NamespaceShare<T> {
    fn default() -> Self {
        Self { in_use: 0, ticket: 0, parts: HashMap::new(), waiting: BTreeSet::new() }
    }
}

impl<T> Default for PartShare<T> {
    fn default() -> Self {
        Self { in_use: 0, ticket: 0, waiting: VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, part: &str) -> ShareKey {
        ShareKey::part(Namespace::new(namespace).unwrap(), part)
    }

    /// A queue and the receivers of all that wait in it.
    struct Waiting(FairQueue<()>, Vec<oneshot::Receiver<()>>);

    impl Waiting {
        fn new(total: usize) -> Self {
            Self(FairQueue::new(total), Vec::new())
        }

        fn enqueue(&mut self, key: &ShareKey, count: usize) {
            for _ in 0..count {
                let (sender, receiver) = oneshot::channel();
                self.0.enqueue(key, sender);
                self.1.push(receiver);
            }
        }

        /// Takes all that may be taken. Returns their keys in order.
        fn take_all(&mut self) -> Vec<ShareKey> {
            std::iter::from_fn(|| {
                let key = self.0.next()?;
                self.0.take(&key).unwrap();
                Some(key)
            })
            .collect()
        }
    }

    #[test]
    fn a_namespace_that_hangs_leaves_half_to_the_others() {
        for (hanging, want) in [(1, 32), (2, 43), (3, 48), (100, 64)] {
            let mut waiting = Waiting::new(64);
            for n in 0..hanging {
                waiting.enqueue(&ShareKey::of(Namespace::new(&format!("n{n}")).unwrap()), 1_000);
            }
            assert_eq!(waiting.take_all().len(), want, "{hanging} namespaces");
        }
    }

    #[test]
    fn many_parts_of_one_namespace_have_no_more_than_one_namespace() {
        let mut waiting = Waiting::new(64);
        for n in 0..100 {
            waiting.enqueue(&key("hostile", &format!("10.0.0.{n}")), 10);
        }
        assert_eq!(waiting.take_all().len(), 32);
        waiting.enqueue(&key("quiet", "a"), 5);
        assert_eq!(waiting.take_all(), vec![key("quiet", "a"); 5]);
    }

    #[test]
    fn one_part_of_a_namespace_leaves_some_to_its_other_parts() {
        let mut waiting = Waiting::new(64);
        waiting.enqueue(&key("a", "hangs"), 1_000);
        assert_eq!(waiting.take_all().len(), 16);
        waiting.enqueue(&key("a", "hangs too"), 1_000);
        assert_eq!(waiting.take_all().len(), 8);
        waiting.enqueue(&key("a", "answers"), 3);
        assert_eq!(waiting.take_all(), vec![key("a", "answers"); 3]);
    }

    #[test]
    fn those_that_use_the_fewest_are_next_and_then_those_that_have_waited_longest() {
        let mut waiting = Waiting::new(12);
        for name in ["a", "a", "b", "c"] {
            waiting.enqueue(&key(name, "x"), 1);
        }
        let names: Vec<_> =
            waiting.take_all().into_iter().map(|key| key.namespace.to_string()).collect();
        assert_eq!(names, ["a", "b", "c", "a"]);
    }

    #[test]
    fn what_is_released_is_taken_by_the_next_and_nothing_is_left_in_the_end() {
        let mut waiting = Waiting::new(2);
        waiting.enqueue(&key("a", "x"), 3);
        for _ in 0..3 {
            assert_eq!(waiting.take_all(), [key("a", "x")]);
            waiting.0.release(&key("a", "x"));
        }
        assert!(waiting.0.namespaces.is_empty() && waiting.0.waiting.is_empty());
        assert_eq!(waiting.0.in_use, 0);
    }

    #[test]
    fn what_is_taken_without_waiting_has_the_same_bounds() {
        let mut waiting = Waiting::new(64);
        assert!(!waiting.0.try_take(&key("a", "x")), "none is in use");
        waiting.enqueue(&key("a", "x"), 1);
        assert!(!waiting.0.try_take(&key("a", "x")), "another waits");
        waiting.take_all();
        let taken = (1..100).take_while(|_| waiting.0.try_take(&key("a", "x"))).count();
        assert_eq!(taken, 15, "one part has 16");
        waiting.enqueue(&key("a", "x"), 1);
        assert_eq!(waiting.take_all(), []);
        let whole = ShareKey::of(Namespace::new("b").unwrap());
        waiting.enqueue(&whole, 1);
        assert_eq!(waiting.take_all().len(), 1);
        assert!(!waiting.0.try_take(&whole), "one of a waits");
    }

    #[test]
    fn one_that_no_longer_waits_is_passed_over() {
        let mut waiting = Waiting::new(4);
        waiting.enqueue(&key("a", "x"), 1);
        waiting.enqueue(&key("b", "x"), 1);
        drop(waiting.1.remove(0));
        assert_eq!(waiting.take_all(), [key("b", "x")]);
        waiting.0.release(&key("b", "x"));
        assert!(waiting.0.namespaces.is_empty());
    }
}
