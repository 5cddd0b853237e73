//! The relocations that the catalog has of tasks which a checkpoint writes, as far as memory knows
//! them.
//!
//! They are taken in descending order, and memory shrinks meanwhile.

use punctual_core::{PartitionId, TaskId};

use crate::state::layers::IdHash;
use crate::state::relocation::Relocation;
use crate::state::row_table::RowTable;

/// So many rows are taken before memory is returned: a few megabytes.
const TAKEN_MAX: usize = 65_536;

/// Relocations in the catalog. `None` is a row that the catalog does not have.
#[derive(Debug, Default)]
pub(super) struct RelocationsBefore {
    rows: Vec<(TaskId, Option<Relocation>)>,
    is_sorted: bool,
}

/// The order of the catalog's keys.
pub(super) fn catalog_order(id: TaskId) -> (PartitionId, TaskId) {
    (id.partition(), id)
}

impl RelocationsBefore {
    /// The rows of a table. They are sorted later, without the lock on the state.
    pub(super) fn new(table: Option<RowTable<TaskId, Option<Relocation>, IdHash>>) -> Self {
        Self { rows: table.map(RowTable::into_rows).unwrap_or_default(), is_sorted: false }
    }

    pub(super) fn sort(&mut self) {
        if !self.is_sorted {
            self.rows.sort_unstable_by_key(|(id, _)| catalog_order(*id));
            self.is_sorted = true;
        }
    }

    /// The row of a task, if memory knows it.
    pub(super) fn get(&self, id: TaskId) -> Option<Option<Relocation>> {
        let found =
            self.rows.binary_search_by_key(&catalog_order(id), |(id, _)| catalog_order(*id));
        Some(self.rows[found.ok()?].1)
    }

    /// Takes the row of a task, if memory knows it, and all after it. After [`Self::sort`], and for
    /// tasks in descending order.
    pub(super) fn take(&mut self, id: TaskId) -> Option<Option<Relocation>> {
        while self.rows.pop_if(|(last, _)| catalog_order(*last) > catalog_order(id)).is_some() {}
        let taken = self.rows.pop_if(|(last, _)| *last == id);
        if self.rows.capacity() - self.rows.len() > TAKEN_MAX {
            self.rows.shrink_to_fit();
        }
        Some(taken?.1)
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Timestamp;

    use super::*;

    #[test]
    fn rows_are_taken_in_descending_order_and_memory_shrinks() {
        let id = |number: u64| TaskId::floor(Timestamp::from_millis(number));
        let row = |number| Relocation::filed(Timestamp::from_millis(number * 2));
        let mut table = RowTable::default();
        for number in (0..200_000).rev() {
            table.insert(id(number * 3), (number % 2 == 0).then(|| row(number)));
        }
        let mut before = RelocationsBefore::new(Some(table));
        before.sort();
        assert_eq!(before.get(id(600)), Some(Some(row(200))));
        assert_eq!(before.get(id(601)), None);
        for number in (0..600_001).rev().filter(|number| number % 7 != 0) {
            let known = number % 3 == 0 && number < 600_000;
            let want = known.then(|| (number % 2 == 0).then(|| row(number / 3)));
            assert_eq!(before.take(id(number)), want, "{number}");
            assert!(before.rows.capacity() <= before.rows.len() + TAKEN_MAX);
        }
        assert_eq!(before.get(id(600)), None, "it was taken");
    }
}
