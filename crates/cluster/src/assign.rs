//! Assigns partitions to brokers.
//!
//! The number of partitions of any two brokers differs by at most one, and as few partitions as
//! possible move. The function is pure: the leader proposes an assignment that every broker can
//! compute.

use std::collections::BTreeSet;

use punctual_core::{Assignment, BrokerId};

/// Computes an assignment. `before` has the previous broker of each partition, and `brokers` are
/// those that may have any.
pub(crate) fn assign(
    before: &[Option<BrokerId>],
    brokers: impl IntoIterator<Item = BrokerId>,
) -> Assignment {
    let brokers: Vec<BrokerId> = brokers.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    if brokers.is_empty() {
        return Assignment { owners: vec![None; before.len()] };
    }
    let mut capacity = shares(before, &brokers);
    let mut owners: Vec<Option<BrokerId>> = vec![None; before.len()];
    for (owner, last) in owners.iter_mut().zip(before) {
        let Some(index) = last.as_ref().and_then(|last| brokers.binary_search(last).ok()) else {
            continue;
        };
        if capacity[index] > 0 {
            capacity[index] -= 1;
            *owner = Some(brokers[index].clone());
        }
    }
    // The rest is distributed in turn, so that neighbouring partitions do not all move to the same
    // broker.
    let mut next = 0;
    for owner in owners.iter_mut().filter(|owner| owner.is_none()) {
        // The shares add up to the number of partitions, so some broker has capacity left.
        while capacity[next] == 0 {
            next = (next + 1) % brokers.len();
        }
        capacity[next] -= 1;
        *owner = Some(brokers[next].clone());
        next = (next + 1) % brokers.len();
    }
    Assignment { owners }
}

/// Computes how many partitions each broker gets. If the number is not divisible, the brokers that
/// have the most keep one more, which saves a move.
fn shares(before: &[Option<BrokerId>], brokers: &[BrokerId]) -> Vec<usize> {
    let mut counts = vec![0usize; brokers.len()];
    for last in before.iter().flatten() {
        if let Ok(index) = brokers.binary_search(last) {
            counts[index] += 1;
        }
    }
    let (least, more) = (before.len() / brokers.len(), before.len() % brokers.len());
    let mut indexes: Vec<usize> = (0..brokers.len()).collect();
    indexes.sort_by_key(|index| std::cmp::Reverse(counts[*index]));
    let mut shares = vec![least; brokers.len()];
    for index in indexes.into_iter().take(more) {
        shares[index] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn broker(number: usize) -> BrokerId {
        BrokerId::new(&format!("b{number}:1"))
    }

    fn counts(owners: &[Option<BrokerId>]) -> BTreeMap<&BrokerId, usize> {
        let mut counts = BTreeMap::new();
        for owner in owners.iter().flatten() {
            *counts.entry(owner).or_default() += 1;
        }
        counts
    }

    /// Computes the smallest number of moves: each broker keeps what it has up to its share, and as
    /// many as possible keep one more.
    fn moves_min(before: &[Option<BrokerId>], brokers: &[BrokerId]) -> usize {
        let (least, mut more) = (before.len() / brokers.len(), before.len() % brokers.len());
        let had = counts(before);
        let mut kept = 0;
        for broker in brokers {
            let had = had.get(broker).copied().unwrap_or(0);
            kept += had.min(least);
            if had > least && more > 0 {
                kept += 1;
                more -= 1;
            }
        }
        before.len() - kept
    }

    #[test]
    fn without_brokers_no_partition_is_assigned() {
        let before = [Some(broker(1)), None];
        assert_eq!(assign(&before, []).owners, [None, None]);
    }

    #[test]
    fn a_fourth_broker_gets_a_quarter_and_nothing_else_moves() {
        let three = assign(&vec![None; 16], (0..3).map(broker));
        let four = assign(&three.owners, (0..4).map(broker));
        let moved: Vec<_> = three.owners.iter().zip(&four.owners).filter(|(a, b)| a != b).collect();
        assert_eq!(moved.len(), 4);
        assert!(moved.iter().all(|(_, successor)| **successor == Some(broker(3))), "{moved:?}");
    }

    proptest! {
        #[test]
        fn shares_are_even_moves_few_and_order_does_not_matter(
            before in prop::collection::vec(prop::option::of(0usize..8), 1..70),
            present in prop::collection::vec(0usize..8, 1..8),
        ) {
            let before: Vec<_> = before.into_iter().map(|number| number.map(broker)).collect();
            let present: Vec<_> = present.into_iter().map(broker).collect();
            let assignment = assign(&before, present.clone());
            let unique: BTreeSet<_> = present.iter().cloned().collect();
            let unique: Vec<_> = unique.into_iter().collect();

            let counts = counts(&assignment.owners);
            prop_assert!(counts.keys().all(|owner| unique.contains(owner)));
            let share = |broker| counts.get(broker).copied().unwrap_or(0);
            let most = unique.iter().map(share).max().unwrap();
            let least = unique.iter().map(share).min().unwrap();
            prop_assert!(most - least <= 1, "{counts:?}");
            prop_assert_eq!(counts.values().sum::<usize>(), before.len());

            let moves = before.iter().zip(&assignment.owners).filter(|(a, b)| a != b).count();
            prop_assert_eq!(moves, moves_min(&before, &unique));

            let again = assign(&assignment.owners, present.clone());
            prop_assert_eq!(&again, &assignment, "a second run moves nothing");
            prop_assert_eq!(assign(&before, present.into_iter().rev()), assignment);
        }
    }
}
