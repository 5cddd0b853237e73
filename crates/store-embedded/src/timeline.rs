//! The timeline: which runs of tasks there are, by slice of time.
//!
//! In: runs that were written. Out: those in which an entry may stand. Near slices are a day long, far ones
//! [`Options::FAR_SLICES`](crate::Options::FAR_SLICES) days, so that tasks years away make few files.
//! A timeline never changes: a checkpoint makes the next version of it, and readers go on with theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_core::Timestamp;

use crate::catalog::RunKind;
use crate::key::Key;
use crate::options::Options;
use crate::run::{Run, RunNo};

/// A slice of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slice {
    pub(crate) start: u64,
    pub(crate) far: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    /// Grows with every change.
    pub(crate) version: u64,
    slice_millis: u64,
    slices: BTreeMap<Slice, Vec<Arc<Run>>>,
}

impl Slice {
    /// The slice of a time, seen from `now`.
    pub(crate) fn of(at: Timestamp, now: Timestamp, options: &Options) -> Self {
        let near = options.slice_millis();
        let horizon = (now.as_millis() / near + options.near_slices) * near;
        // A far slice begins where its whole span is far, so that near and far do not overlap by much.
        let far = at.as_millis() >= horizon;
        Self::holding(at, near, far)
    }

    fn holding(at: Timestamp, near: u64, far: bool) -> Self {
        let span = if far { near * Options::FAR_SLICES } else { near };
        Self { start: at.as_millis() / span * span, far }
    }

    pub(crate) const fn kind(self) -> RunKind {
        if self.far { RunKind::Far } else { RunKind::Near }
    }

    /// Where it ends.
    pub(crate) const fn end(self, near: u64) -> u64 {
        let span = if self.far { near * Options::FAR_SLICES } else { near };
        self.start + span
    }
}

impl Timeline {
    pub(crate) fn new(slice_millis: u64) -> Self {
        Self { version: 0, slice_millis, slices: BTreeMap::new() }
    }

    /// Adds runs, before anybody reads.
    pub(crate) fn add(&mut self, run: Run, kind: RunKind) {
        let slice = Slice::holding(run.first().at, self.slice_millis, kind == RunKind::Far);
        self.slices.entry(slice).or_default().push(Arc::new(run));
    }

    /// The next version: with some runs more and some fewer.
    pub(crate) fn with(&self, added: Vec<(RunKind, Arc<Run>)>, dropped: &[RunNo]) -> Self {
        let mut next = self.clone();
        next.version += 1;
        if !dropped.is_empty() {
            for runs in next.slices.values_mut() {
                runs.retain(|run| !dropped.contains(&run.no));
            }
            next.slices.retain(|_, runs| !runs.is_empty());
        }
        for (kind, run) in added {
            let slice = Slice::holding(run.first().at, self.slice_millis, kind == RunKind::Far);
            next.slices.entry(slice).or_default().push(run);
        }
        next
    }

    /// Runs in which an entry of this key may stand.
    pub(crate) fn covering(&self, key: Key) -> impl Iterator<Item = &Arc<Run>> {
        [false, true]
            .into_iter()
            .filter_map(move |far| self.slices.get(&Slice::holding(key.at, self.slice_millis, far)))
            .flatten()
            .filter(move |run| run.may_have(key))
    }

    /// Whether a run that had an entry of this key is still there.
    pub(crate) fn has(&self, key: Key, run: &Arc<Run>) -> bool {
        self.covering(key).any(|other| other.no == run.no)
    }

    /// Runs of slices that end after a time.
    pub(crate) fn after(&self, at: Timestamp) -> impl Iterator<Item = &Arc<Run>> {
        let near = self.slice_millis;
        self.slices
            .iter()
            .filter(move |(slice, _)| slice.end(near) > at.as_millis())
            .flat_map(|(_, runs)| runs)
    }

    pub(crate) fn slices(&self) -> impl Iterator<Item = (Slice, &[Arc<Run>])> {
        self.slices.iter().map(|(slice, runs)| (*slice, runs.as_slice()))
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.slices.values().flatten()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }
}
