//! The arguments of `apply.lua`: one list per section, each in one buffer.
//!
//! `batch` fills the sections; `script` sends each as its length and its arguments.

use punctual_core::Namespace;

/// A list of arguments in one buffer.
#[derive(Debug, Default)]
pub(crate) struct ArgumentList {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ArgumentList {
    pub(crate) fn push(&mut self, argument: &[u8]) {
        self.write(|out| out.extend_from_slice(argument));
    }

    pub(crate) fn push_number(&mut self, number: impl Into<i128>) {
        self.push(number.into().to_string().as_bytes());
    }

    pub(crate) fn write(&mut self, argument: impl FnOnce(&mut Vec<u8>)) {
        argument(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub(crate) const fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// The sections of the series of one namespace.
#[derive(Debug)]
pub(crate) struct SeriesArguments {
    pub(crate) namespace: Namespace,
    pub(super) due: ArgumentList,
    pub(super) removed: ArgumentList,
}

/// The sections of a batch. `apply.lua` describes their contents.
#[derive(Debug, Default)]
pub(crate) struct BatchArguments {
    pub(super) restored: ArgumentList,
    pub(super) restored_fires: ArgumentList,
    pub(super) removed: ArgumentList,
    pub(super) ended: ArgumentList,
    pub(super) due: ArgumentList,
    pub(super) paused: ArgumentList,
    pub(super) was_paused: ArgumentList,
    pub(super) was_due: ArgumentList,
    pub(super) postponed: ArgumentList,
    pub(super) named: ArgumentList,
    pub(super) freed: ArgumentList,
    pub(super) freed_if: ArgumentList,
    pub(super) freed_if_ids: ArgumentList,
    pub(super) letters: ArgumentList,
    pub(super) letter_groups: ArgumentList,
    pub(super) dead: ArgumentList,
    pub(super) dead_ages: ArgumentList,
    pub(super) removed_letters: ArgumentList,
    pub(super) removed_letter_members: ArgumentList,
    pub(super) history: ArgumentList,
    pub(super) fires: ArgumentList,
    pub(super) ages: ArgumentList,
    pub(super) ends: ArgumentList,
    pub(super) keyed: ArgumentList,
    pub(super) counts: ArgumentList,
    pub(super) due_log: ArgumentList,
    pub(crate) series: Vec<SeriesArguments>,
    /// Whether the batch has new tasks, which need free memory.
    pub(crate) grows: bool,
}

impl BatchArguments {
    /// Returns all sections, in the order in which `apply.lua` reads them.
    pub(crate) fn sections(&self) -> impl Iterator<Item = &ArgumentList> {
        let series = self.series.iter().flat_map(|series| [&series.due, &series.removed]);
        self.fixed().into_iter().chain(series)
    }

    const fn fixed(&self) -> [&ArgumentList; 26] {
        [
            &self.restored,
            &self.restored_fires,
            &self.removed,
            &self.ended,
            &self.due,
            &self.paused,
            &self.was_paused,
            &self.was_due,
            &self.postponed,
            &self.named,
            &self.freed,
            &self.freed_if,
            &self.freed_if_ids,
            &self.letters,
            &self.letter_groups,
            &self.dead,
            &self.dead_ages,
            &self.removed_letters,
            &self.removed_letter_members,
            &self.history,
            &self.fires,
            &self.ages,
            &self.ends,
            &self.keyed,
            &self.counts,
            &self.due_log,
        ]
    }

    /// Returns the size of all arguments in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.sections().map(ArgumentList::bytes).sum()
    }

    /// Returns the number of all arguments.
    pub(crate) fn count(&self) -> usize {
        self.sections().map(ArgumentList::len).sum()
    }
}
