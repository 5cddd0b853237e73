//! How much of a budget each namespace uses, and which of them may take more.
//!
//! No namespace uses more than is left for all others together: one that holds deliveries without
//! end has a half, two have a third each, and so on, so that another namespace still finds some.
//! The same rule bounds what namespaces share in the server (`server/src/shares.rs`).

use std::collections::HashMap;

use punctual_core::Namespace;
use rapidhash::fast::RandomState;

/// A budget in units of weight ([`Budget::weight`](crate::Budget::weight)) that namespaces share.
#[derive(Debug)]
pub(crate) struct NamespaceShares {
    total: usize,
    used: usize,
    by_namespace: HashMap<Namespace, usize, RandomState>,
}

impl NamespaceShares {
    pub(crate) fn new(total: usize) -> Self {
        Self { total: total.max(1), used: 0, by_namespace: HashMap::default() }
    }

    /// Whether a namespace may take more.
    pub(crate) fn may_take(&self, namespace: &Namespace) -> bool {
        // Far from the limit no namespace needs to be looked up.
        self.used < self.total / 2 || self.used_by(namespace) < self.left()
    }

    /// Whether a namespace uses less than half of what it may.
    pub(crate) fn is_half_empty(&self, namespace: &Namespace) -> bool {
        self.used < self.total / 4 || self.used_by(namespace) < self.left() / 2
    }

    pub(crate) fn add(&mut self, namespace: &Namespace, weight: usize) {
        self.used += weight;
        match self.by_namespace.get_mut(namespace) {
            Some(used) => *used += weight,
            None => _ = self.by_namespace.insert(namespace.clone(), weight),
        }
    }

    pub(crate) fn subtract(&mut self, namespace: &Namespace, weight: usize) {
        self.used -= weight;
        if let Some(used) = self.by_namespace.get_mut(namespace) {
            *used -= weight;
            if *used == 0 {
                self.by_namespace.remove(namespace);
            }
        }
    }

    fn used_by(&self, namespace: &Namespace) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or(0)
    }

    const fn left(&self) -> usize {
        self.total.saturating_sub(self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_takes_at_most_as_much_as_it_leaves_to_the_others() {
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        let mut shares = NamespaceShares::new(100);
        let mut taken = 0;
        while shares.may_take(&a) {
            shares.add(&a, 1);
            taken += 1;
        }
        assert_eq!(taken, 50);
        assert!(shares.may_take(&b));
        assert!(shares.is_half_empty(&b) && !shares.is_half_empty(&a));
        shares.add(&b, 30);
        assert!(!shares.may_take(&b), "30 of 100 is more than the 20 that are left");
        shares.subtract(&a, 40);
        assert!(shares.may_take(&b));
        shares.subtract(&a, 10);
        shares.subtract(&b, 30);
        assert!(shares.by_namespace.is_empty());
    }
}
