//! Groups of dead letters: how many letters of a namespace have the same reason and target.
//!
//! [`LetterGroups`] is the count of one namespace in one partition. It is exact for each letter
//! that is added once and removed once. The number of groups is bounded, because receivers choose
//! reasons: with [`LetterGroups::COUNT_MAX`] groups, further ones count together as *other*. A
//! letter counts there until it is removed, so nothing is counted in one group and taken from
//! another.

use std::collections::BTreeMap;

use punctual_core::{FireId, LetterGroup, Timestamp};

/// A group of dead letters, with its letters counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedGroup {
    /// What the letters have in common. [`LetterGroup::other`] if it is that of all other groups.
    pub group: LetterGroup,
    /// How many letters there are.
    pub letters: GroupLetters,
}

/// The letters of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLetters {
    /// How many there are; never zero.
    pub count: u64,
    /// When the first of them died, since there was none.
    pub first_at: Timestamp,
    /// When the last of them died.
    pub last_at: Timestamp,
    /// The fire of a letter that is still there. `None` after the letter that was added last was
    /// removed, until another is added.
    pub example: Option<FireId>,
}

impl GroupLetters {
    /// Returns a letter as a group of its own.
    #[must_use]
    pub const fn one(died_at: Timestamp, fire_id: FireId) -> Self {
        Self { count: 1, first_at: died_at, last_at: died_at, example: Some(fire_id) }
    }

    /// Adds the letters of the same group in another partition.
    pub fn add_all(&mut self, others: &Self) {
        self.count += others.count;
        self.first_at = self.first_at.min(others.first_at);
        if others.last_at > self.last_at || self.example.is_none() {
            self.example = others.example.or(self.example);
        }
        self.last_at = self.last_at.max(others.last_at);
    }

    /// Adds letters that died since the last one was added.
    fn add_later(&mut self, later: &Self) {
        self.add_all(later);
        self.example = later.example.or(self.example);
    }

    /// Returns the letters without one of them; `None` if it was the last.
    fn without(mut self, fire_id: FireId) -> Option<Self> {
        self.count = self.count.checked_sub(1).filter(|count| *count > 0)?;
        self.example = self.example.filter(|example| *example != fire_id);
        Some(self)
    }
}

/// The groups of the dead letters of one namespace in one partition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LetterGroups {
    groups: BTreeMap<LetterGroup, GroupLetters>,
    other: Option<GroupLetters>,
}

impl LetterGroups {
    /// The largest number of groups, without that of all others. A group takes some hundred bytes
    /// of memory, and a namespace may have as many in each partition.
    pub const COUNT_MAX: usize = 64;

    /// Returns groups that were stored.
    #[must_use]
    pub fn from_stored(groups: impl IntoIterator<Item = CountedGroup>) -> Self {
        let mut all = Self::default();
        for CountedGroup { group, letters } in groups {
            if group == LetterGroup::other() {
                all.other = Some(letters);
            } else {
                all.groups.insert(group, letters);
            }
        }
        all
    }

    /// Counts a letter.
    pub fn add(&mut self, group: LetterGroup, died_at: Timestamp, fire_id: FireId) {
        self.add_all(group, GroupLetters::one(died_at, fire_id));
    }

    /// Counts letters of one group.
    pub fn add_all(&mut self, group: LetterGroup, letters: GroupLetters) {
        if let Some(counted) = self.groups.get_mut(&group) {
            return counted.add_later(&letters);
        }
        match &mut self.other {
            // While there are others, no group is made: one of them may belong to it.
            Some(other) => other.add_later(&letters),
            None if self.groups.len() < Self::COUNT_MAX => _ = self.groups.insert(group, letters),
            None => self.other = Some(letters),
        }
    }

    /// Removes a letter that was counted.
    pub fn remove(&mut self, group: &LetterGroup, fire_id: FireId) {
        match self.groups.get_mut(group) {
            Some(letters) => match letters.without(fire_id) {
                Some(rest) => *letters = rest,
                None => _ = self.groups.remove(group),
            },
            None => self.other = self.other.and_then(|other| other.without(fire_id)),
        }
    }

    /// Returns whether no letter is counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.other.is_none()
    }

    /// Returns all groups, by name. The group of all others is the last.
    pub fn iter(&self) -> impl Iterator<Item = CountedGroup> {
        let groups = self.groups.iter().map(|(group, letters)| (group.clone(), *letters));
        let other = self.other.map(|letters| (LetterGroup::other(), letters));
        groups.chain(other).map(|(group, letters)| CountedGroup { group, letters })
    }

    /// Returns the number of all letters.
    #[must_use]
    pub fn letters(&self) -> u64 {
        self.groups.values().chain(&self.other).map(|letters| letters.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::fixtures::{at, epoch, id, partition, task};

    fn fire(number: u64) -> FireId {
        task(id(at(number), partition(0), epoch(1), number)).build().fire().id
    }

    fn group(number: usize) -> LetterGroup {
        LetterGroup { reason: format!("status {number:03}"), target: "queue a".to_owned() }
    }

    #[test]
    fn a_group_has_the_number_of_its_letters_and_an_example_among_them() {
        let mut groups = LetterGroups::default();
        for (letter, second) in [(1, 5), (2, 3), (3, 9)] {
            groups.add(group(503), at(second), fire(letter));
        }
        groups.add(group(404), at(1), fire(4));
        let letters = |groups: &LetterGroups| {
            let found = groups.iter().find(|counted| counted.group == group(503));
            found.map(|counted| counted.letters)
        };
        let three =
            GroupLetters { count: 3, first_at: at(3), last_at: at(9), example: Some(fire(3)) };
        assert_eq!((letters(&groups), groups.letters()), (Some(three), 4));
        groups.remove(&group(503), fire(1));
        assert_eq!(letters(&groups), Some(GroupLetters { count: 2, ..three }));
        groups.remove(&group(503), fire(3));
        assert_eq!(letters(&groups), Some(GroupLetters { count: 1, example: None, ..three }));
        groups.remove(&group(503), fire(2));
        assert_eq!(letters(&groups), None);
        groups.remove(&group(404), fire(4));
        assert!(groups.is_empty());
    }

    #[test]
    fn letters_beyond_the_bound_count_as_other_until_all_of_them_are_removed() {
        let max = LetterGroups::COUNT_MAX;
        let mut groups = LetterGroups::default();
        for number in 0..max + 2 {
            groups.add(group(number), at(1), fire(number as u64));
        }
        let other = |groups: &LetterGroups| {
            let last = groups.iter().find(|counted| counted.group == LetterGroup::other());
            last.map_or(0, |counted| counted.letters.count)
        };
        assert_eq!((groups.iter().count(), other(&groups)), (max + 1, 2));
        groups.remove(&group(0), fire(0));
        groups.add(group(max), at(2), fire(1000));
        assert_eq!((groups.iter().count(), other(&groups)), (max, 3), "no group is made");
        for (number, letter) in [(max, max), (max + 1, max + 1), (max, 1000)] {
            groups.remove(&group(number), fire(letter as u64));
        }
        assert_eq!((groups.iter().count(), other(&groups)), (max - 1, 0));
        groups.add(group(max), at(2), fire(1001));
        assert_eq!((groups.iter().count(), other(&groups)), (max, 0));
        assert_eq!(LetterGroups::from_stored(groups.iter()), groups);
    }

    #[test]
    fn the_letters_of_partitions_add_up() {
        let one = |second, letter| GroupLetters::one(at(second), fire(letter));
        let mut sum = one(5, 1);
        sum.add_all(&one(9, 2));
        sum.add_all(&GroupLetters { example: None, ..one(12, 3) });
        sum.add_all(&one(2, 4));
        let want =
            GroupLetters { count: 4, first_at: at(2), last_at: at(12), example: Some(fire(2)) };
        assert_eq!(sum, want);
    }
}
