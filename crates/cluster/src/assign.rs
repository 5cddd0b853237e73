//! Assigning: who should hold which partition.
//!
//! In: who was to hold what, and who is there to hold anything. Out: an [`Assignment`] in which no broker has more than one
//! partition more than another, reached with as few moves as can be. A pure function, and the same for everybody: the leader
//! proposes what every broker can work out for itself.

use std::collections::BTreeSet;

use punctual_core::{Assignment, BrokerId};

/// Who should hold what from now on. `before` is who was to hold each partition, and `brokers` who may.
pub(crate) fn assign(
    before: &[Option<BrokerId>],
    brokers: impl IntoIterator<Item = BrokerId>,
) -> Assignment {
    let brokers: Vec<BrokerId> = brokers.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    if brokers.is_empty() {
        return Assignment { owners: vec![None; before.len()] };
    }
    let mut room = shares(before, &brokers);
    let mut owners: Vec<Option<BrokerId>> = vec![None; before.len()];
    for (owner, last) in owners.iter_mut().zip(before) {
        let Some(place) = last.as_ref().and_then(|last| brokers.binary_search(last).ok()) else {
            continue;
        };
        if room[place] > 0 {
            room[place] -= 1;
            *owner = Some(brokers[place].clone());
        }
    }
    // The rest goes round, so that neighbouring partitions do not all move to the same broker.
    let mut next = 0;
    for owner in owners.iter_mut().filter(|owner| owner.is_none()) {
        // The shares add up to the partitions, so there is room for each.
        while room[next] == 0 {
            next = (next + 1) % brokers.len();
        }
        room[next] -= 1;
        *owner = Some(brokers[next].clone());
        next = (next + 1) % brokers.len();
    }
    Assignment { owners }
}

/// How many partitions each broker gets. Where they do not come out even, those that have most keep one more: moving one
/// away from them would be a move too many.
fn shares(before: &[Option<BrokerId>], brokers: &[BrokerId]) -> Vec<usize> {
    let mut counts = vec![0usize; brokers.len()];
    for last in before.iter().flatten() {
        if let Ok(place) = brokers.binary_search(last) {
            counts[place] += 1;
        }
    }
    let (least, more) = (before.len() / brokers.len(), before.len() % brokers.len());
    let mut places: Vec<usize> = (0..brokers.len()).collect();
    places.sort_by_key(|place| std::cmp::Reverse(counts[*place]));
    let mut shares = vec![least; brokers.len()];
    for place in places.into_iter().take(more) {
        shares[place] += 1;
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

    /// The fewest moves that lead to balance: each broker keeps what it has up to the share that it may have, and as many
    /// as there can be keep one more.
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
    fn nobody_there_means_nobody_is_to_hold_anything() {
        let before = [Some(broker(1)), None];
        assert_eq!(assign(&before, []).owners, [None, None]);
    }

    #[test]
    fn a_fourth_broker_takes_a_quarter_and_nothing_else_moves() {
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
            let unique: Vec<_> = present.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();

            let counts = counts(&assignment.owners);
            prop_assert!(counts.keys().all(|owner| unique.contains(owner)));
            let share = |broker| counts.get(broker).copied().unwrap_or(0);
            let most = unique.iter().map(share).max().unwrap();
            let least = unique.iter().map(share).min().unwrap();
            prop_assert!(most - least <= 1, "{counts:?}");
            prop_assert_eq!(counts.values().sum::<usize>(), before.len());

            let moves = before.iter().zip(&assignment.owners).filter(|(a, b)| a != b).count();
            prop_assert_eq!(moves, moves_min(&before, &unique));

            prop_assert_eq!(&assign(&assignment.owners, present.clone()), &assignment, "nothing moves again");
            prop_assert_eq!(assign(&before, present.into_iter().rev()), assignment);
        }
    }
}
