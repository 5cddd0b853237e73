//! Verifies that everything in a store can be listed as the API lists it.
//!
//! The API reads pages over all partitions with one cursor, so a page of one partition may begin
//! after an entry of another. A task or a dead letter that such pages pass over is in the store but
//! cannot be seen. History is read by task; a sample of its records is looked up.

use std::collections::{BTreeMap, BTreeSet};

use punctual_core::{DeadLetter, FireId, Namespace, PartitionId};
use punctual_store::codec::read_record_id;
use punctual_store::{Filter, Page, Position};

use super::{CheckReport, LiveCounts};
use crate::fault::{ReadContext, StorageFault};
use crate::store_core::StoreCore;

/// Pages that a list is read in, at least, so that cursors are used in small stores as well.
const PAGES_MIN: i64 = 4;
/// Entries of one page: as many as the API allows.
const PAGE_MAX: i64 = 1000;
/// One of so many records of history is looked up: about one of each block of a run.
pub(super) const RECORDS_PER_SAMPLE: usize = 64;

/// Live tasks and dead letters by partition and namespace.
pub(super) type CountsByNamespace = BTreeMap<(PartitionId, String), LiveCounts>;

impl StoreCore {
    /// Pages through tasks and dead letters, and compares their numbers with `live`, which were
    /// counted one by one.
    pub(super) fn check_lists(
        &self,
        live: &CountsByNamespace,
        report: &mut CheckReport,
    ) -> Result<(), StorageFault> {
        let mut listed = CountsByNamespace::new();
        let names: BTreeSet<&String> = live.keys().map(|(_, namespace)| namespace).collect();
        for name in names {
            let Ok(namespace) = Namespace::from_stored(name) else {
                report.problems.push(format!("the stored name {name:?} is not a valid namespace"));
                continue;
            };
            let of_name = live.iter().filter(|((_, other), _)| other == name);
            let (tasks, letters) = of_name.fold((0, 0), |(tasks, letters), (_, counts)| {
                (tasks + counts.tasks(), letters + counts.dead_letters)
            });
            self.list_tasks(&namespace, page_limit(tasks), &mut listed)?;
            self.list_dead_letters(&namespace, page_limit(letters), &mut listed, report)?;
        }
        report.problems.extend(unlisted(live, &listed));
        Ok(())
    }

    fn list_tasks(
        &self,
        namespace: &Namespace,
        limit: usize,
        listed: &mut CountsByNamespace,
    ) -> Result<(), StorageFault> {
        let filter = Filter::all(namespace.clone());
        let read = |partition, after: Option<Position>| {
            self.list(partition, &filter, after.unwrap_or(Position::START), limit)
        };
        self.each_listed(read, Position::of, |partition, task| {
            let name = (partition, namespace.as_str().to_owned());
            listed.entry(name).or_default().add(task.state);
            Ok(())
        })
    }

    fn list_dead_letters(
        &self,
        namespace: &Namespace,
        limit: usize,
        listed: &mut CountsByNamespace,
        report: &mut CheckReport,
    ) -> Result<(), StorageFault> {
        let read = |partition, after| self.dead(partition, namespace, after, limit);
        self.each_listed(read, DeadLetter::fire_id, |partition, letter| {
            let name = (partition, namespace.as_str().to_owned());
            listed.entry(name).or_default().dead_letters += 1;
            let fire_id = letter.fire_id();
            if self.dead_letter(fire_id)?.is_none() {
                let problem = format!("dead letter {fire_id} is listed, but cannot be read");
                report.problems.push(problem);
            }
            Ok(())
        })
    }

    /// Reads pages over all partitions with one cursor, and calls `each` for every entry.
    fn each_listed<T, C: Copy + Ord>(
        &self,
        read: impl Fn(PartitionId, Option<C>) -> Result<Page<T, C>, StorageFault>,
        position: impl Fn(&T) -> C,
        mut each: impl FnMut(PartitionId, &T) -> Result<(), StorageFault>,
    ) -> Result<(), StorageFault> {
        let mut after = None;
        loop {
            let mut pages = Vec::new();
            for partition in self.options.partitions.iter() {
                pages.push((partition, read(partition, after)?));
            }
            // Up to this position every partition was read.
            let upto = pages.iter().filter_map(|(_, page)| page.next).min();
            for (partition, page) in &pages {
                let within = |item: &&T| upto.is_none_or(|upto| position(item) <= upto);
                page.items.iter().filter(within).try_for_each(|item| each(*partition, item))?;
            }
            if upto.is_none() {
                return Ok(());
            }
            after = upto;
        }
    }

    /// Looks up fires of which history has a record, each by its task.
    pub(super) fn check_samples(
        &self,
        samples: &[FireId],
        report: &mut CheckReport,
    ) -> Result<(), StorageFault> {
        for fire_id in samples {
            let records = self.history(fire_id.task, usize::MAX, usize::MAX)?;
            if !records.iter().any(|record| record.fire_id == *fire_id) {
                let problem = format!(
                    "history has a record of fire {fire_id}, but the history of its task does not"
                );
                report.problems.push(problem);
            }
        }
        Ok(())
    }

    /// Fires of records that are only in memory, one of so many.
    pub(super) fn sampled_in_memory(&self) -> Result<Vec<FireId>, StorageFault> {
        let state = self.state()?;
        let records = state.history.buffer.sorted();
        Ok(records.iter().step_by(RECORDS_PER_SAMPLE).map(|entry| entry.fire_id()).collect())
    }
}

/// Returns the fire of a record.
pub(super) fn fire_of(record: &[u8]) -> Result<FireId, StorageFault> {
    Ok(read_record_id(record).reading("record of a fire")?.0)
}

fn page_limit(entries: i64) -> usize {
    usize::try_from((entries / PAGES_MIN).clamp(1, PAGE_MAX)).unwrap_or(1)
}

/// Returns a problem for each namespace of which another number was listed than there is.
fn unlisted(live: &CountsByNamespace, listed: &CountsByNamespace) -> Vec<String> {
    let mut problems = Vec::new();
    for ((partition, namespace), there) in live {
        let name = (*partition, namespace.clone());
        let shown = listed.get(&name).copied().unwrap_or_default();
        for (what, there, shown) in [
            ("tasks", there.tasks(), shown.tasks()),
            ("dead letters", there.dead_letters, shown.dead_letters),
        ] {
            if there != shown {
                problems.push(format!(
                    "{partition}, namespace {namespace}: {there} {what} are stored, but {shown} \
                     are listed"
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_stored_and_not_listed_are_a_problem() {
        let first = (PartitionId::FIRST, "shop".to_owned());
        let of = |scheduled, dead_letters| {
            let counts = LiveCounts { scheduled, dead_letters, ..LiveCounts::default() };
            CountsByNamespace::from([(first.clone(), counts)])
        };
        assert_eq!(unlisted(&of(3, 2), &of(3, 2)), Vec::<String>::new());
        assert_eq!(unlisted(&of(0, 0), &CountsByNamespace::new()), Vec::<String>::new());
        assert_eq!(
            unlisted(&of(3, 40), &of(3, 12)),
            ["p0, namespace shop: 40 dead letters are stored, but 12 are listed"]
        );
        assert_eq!(
            unlisted(&of(3, 0), &CountsByNamespace::new()),
            ["p0, namespace shop: 3 tasks are stored, but 0 are listed"]
        );
    }

    #[test]
    fn every_list_has_several_pages_and_none_is_larger_than_the_api_allows() {
        for (entries, limit) in [(0, 1), (3, 1), (40, 10), (1_000_000, 1000)] {
            assert_eq!(page_limit(entries), limit, "{entries}");
        }
    }
}
