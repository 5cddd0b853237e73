//! Differences: what batches change in the counts of due tasks and in the groups of dead letters.
//!
//! A batch appends one row to the table `difference`, whatever the number of its minutes and
//! groups, and one row for each letter that it deletes, because only the database knows their
//! groups. Rows of a partition are numbered in the order in which they were committed. `fold` adds
//! them to the table `total` now and then; by then most tasks of the near future have come and
//! gone.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use punctual_core::{DeadLetter, FireId, LetterGroup, Namespace, TaskId, Timestamp};
use punctual_store::codec::{
    CodecError, Decoded, DueDifferences, Interner, Reader, put_bytes, put_counted_group,
    put_varint, read_counted_group, read_due_log, read_letter_group,
};
use punctual_store::{CountedGroup, DueMinute, DueMove, GroupLetters, LetterGroups};

use crate::values::Columns;

/// The first format of a batch's row.
const FORMAT: u8 = 1;

/// What a batch adds to the counts.
#[derive(Debug, Default)]
pub(crate) struct BatchDifferences {
    due: DueDifferences,
    letters: BTreeMap<Namespace, BTreeMap<LetterGroup, GroupLetters>>,
}

impl BatchDifferences {
    pub(crate) fn move_due(&mut self, moved: DueMove<'_>) {
        self.due.add(moved);
    }

    pub(crate) fn add_letter(&mut self, letter: &DeadLetter) {
        let namespace = letter.task.definition.namespace.clone();
        let one = GroupLetters::one(letter.died_at, letter.fire_id());
        let groups = self.letters.entry(namespace).or_default();
        groups.entry(letter.group()).and_modify(|counted| counted.add_all(&one)).or_insert(one);
    }

    /// Returns the bytes of the batch's row; `None` if it has none.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        let due = self.due.to_bytes();
        if due.is_none() && self.letters.is_empty() {
            return None;
        }
        let mut out = vec![FORMAT];
        put_bytes(&mut out, &due.unwrap_or_default());
        for (namespace, groups) in &self.letters {
            put_bytes(&mut out, namespace.as_str().as_bytes());
            put_varint(&mut out, groups.len() as u64);
            for (group, letters) in groups {
                put_counted_group(&mut out, group, letters);
            }
        }
        Some(out)
    }
}

/// A change of the groups of a namespace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LetterMove {
    Added(CountedGroup),
    Removed { group: LetterGroup, fire_id: FireId },
}

impl LetterMove {
    pub(crate) fn apply_to(self, groups: &mut LetterGroups) {
        match self {
            Self::Added(CountedGroup { group, letters }) => groups.add_all(group, letters),
            Self::Removed { group, fire_id } => groups.remove(&group, fire_id),
        }
    }
}

/// A row of the table, read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadDifferences {
    pub(crate) due: Vec<(Namespace, DueMinute, i64)>,
    pub(crate) letters: Vec<(Namespace, LetterMove)>,
}

impl ReadDifferences {
    /// Reads a row from the columns ns, task, nominal and value, which begin at `from`. A row
    /// without a namespace is that of a batch; any other is that of a deleted letter.
    pub(crate) fn read(row: &impl Columns, from: usize, names: &Interner) -> Decoded<Self> {
        let value = row.bytes(from + 3);
        let Some(namespace) = row.bytes_or_null(from) else { return Self::of_batch(value, names) };
        let namespace = std::str::from_utf8(namespace);
        let namespace =
            names.namespace(namespace.map_err(|_| CodecError::Invalid("namespace"))?)?;
        let task = TaskId::try_from_u128(row.id(from + 1).0);
        let task = task.map_err(|_| CodecError::Invalid("id"))?;
        let nominal_at = Timestamp::try_from_millis(row.int(from + 2).into());
        let nominal_at = nominal_at.map_err(|_| CodecError::Invalid("timestamp"))?;
        let group = read_letter_group(value)?;
        let removed = LetterMove::Removed { group, fire_id: FireId { task, nominal_at } };
        Ok(Self { due: Vec::new(), letters: vec![(namespace, removed)] })
    }

    fn of_batch(value: &[u8], names: &Interner) -> Decoded<Self> {
        let mut reader = Reader::new(value);
        match reader.byte()? {
            FORMAT => {}
            other => return Err(CodecError::Format(other)),
        }
        let mut read = Self::default();
        let mut unnamed = None;
        read_due_log(reader.bytes()?, |name, moved| match names.namespace(name) {
            Ok(name) => {
                read.due.extend(moved.iter().map(|(at, by)| (name.clone(), *at, *by)));
                ControlFlow::Continue(())
            }
            Err(error) => {
                unnamed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        if let Some(error) = unnamed {
            return Err(error);
        }
        while !reader.rest().is_empty() {
            let namespace = names.namespace(reader.text()?)?;
            for _ in 0..reader.varint()? {
                let added = LetterMove::Added(read_counted_group(&mut reader)?);
                read.letters.push((namespace.clone(), added));
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use punctual_core::DeadReason;
    use punctual_store::conformance::fixtures::{at, epoch, id, namespace, partition, shop, task};
    use punctual_store::conformance::golden::GoldenFiles;

    use super::*;

    fn letter(number: u64, namespace: &str, reason: DeadReason) -> DeadLetter {
        let task = task(id(at(number), partition(0), epoch(1), number)).namespace(namespace);
        DeadLetter { task: task.build(), died_at: at(100 + number), reason }
    }

    #[test]
    fn the_row_of_a_batch_has_its_bytes_and_reads_back() {
        let mut differences = BatchDifferences::default();
        assert_eq!(differences.to_bytes(), None);
        for (name, from, to) in
            [("shop", None, Some(600_000)), ("shop", None, Some(600_000)), ("b", Some(7), None)]
        {
            let namespace = namespace(name);
            let [from, to] = [from, to].map(|minute| minute.map(DueMinute::new));
            differences.move_due(DueMove { namespace: &namespace, from, to });
        }
        for (number, name, reason) in [
            (1, "shop", DeadReason::Expired),
            (2, "shop", DeadReason::Expired),
            (3, "b", DeadReason::Unknown),
        ] {
            differences.add_letter(&letter(number, name, reason));
        }
        let bytes = differences.to_bytes().expect("not empty");
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join("difference");
        let mut files = GoldenFiles::open(folder);
        let kept = files.check("batch", &bytes);
        files.finish();
        let names = Interner::default();
        let read = ReadDifferences::of_batch(&kept, &names).expect("readable");
        let [shop, b] = [shop(), namespace("b")];
        let due = [(b.clone(), DueMinute::new(7), -1), (shop.clone(), DueMinute::new(600_000), 2)];
        assert_eq!(read.due, due);
        let added = |first: &DeadLetter, last: &DeadLetter, count| {
            let (first_at, last_at) = (first.died_at, last.died_at);
            let letters = GroupLetters { count, first_at, last_at, example: Some(last.fire_id()) };
            LetterMove::Added(CountedGroup { group: last.group(), letters })
        };
        let [first, last] = [1, 2].map(|number| letter(number, "shop", DeadReason::Expired));
        let unknown = letter(3, "b", DeadReason::Unknown);
        let letters = [(b, added(&unknown, &unknown, 1)), (shop, added(&first, &last, 2))];
        assert_eq!(read.letters, letters);
        // A row may end after any namespace; one that is cut elsewhere is refused.
        let readable = (0..kept.len())
            .filter(|length| ReadDifferences::of_batch(&kept[..*length], &names).is_ok());
        assert_eq!(readable.count(), 2);
    }
}
