//! Opening: from files to a state, or an error that says why not.
//!
//! The state is what the catalog lists, and then what the journal has since. A listed run that is
//! missing or damaged is an error. A run file that is not listed was left by an unfinished
//! checkpoint, and is removed.

pub(crate) mod check;
pub(crate) mod count;
pub(crate) mod directory;
pub(crate) mod modes;

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use punctual_core::Timestamp;
use punctual_journal::{CommitNo, Dropped};

use crate::catalog::{Catalog, CatalogContents, CatalogMeta, ListedRun, RunKind};
use crate::fault::StorageFault;
use crate::fire_index::FireIndex;
use crate::open::directory::{Directory, EmbeddedOpenError};
use crate::open::modes::TightenedModes;
use crate::options::EmbeddedOptions;
use crate::run::{RunFiles, RunNo, SortedRun, run_part_of};
use crate::state::StoreState;
use crate::state::partition::{NamespaceCounts, NamespaceGroups};
use crate::state::timeline::Timeline;

/// What opening found.
#[derive(Debug)]
pub struct OpenReport {
    /// Commits that were only in the journal.
    pub replayed: u64,
    /// Whether the store was closed. False after a crash and for a new store.
    pub closed_cleanly: bool,
    /// A torn tail of the journal that was cut off. None of it had been acknowledged.
    pub dropped: Option<Dropped>,
    /// Files of an unfinished checkpoint that were removed.
    pub leftovers: u64,
    /// Paths that other users could access.
    pub tightened: TightenedModes,
}

/// The state as the catalog has it, before the journal is replayed.
pub(crate) struct Restored {
    pub(crate) state: StoreState,
    pub(crate) meta: CatalogMeta,
}

/// Reads what the catalog lists.
pub(crate) fn restore(
    directory: &Directory,
    options: &EmbeddedOptions,
    catalog: &Catalog,
    files: &RunFiles,
) -> Result<Restored, EmbeddedOpenError> {
    let contents = catalog.contents()?;
    let meta = contents.meta.unwrap_or(CatalogMeta {
        commit: CommitNo(0),
        generation: crate::run::Generation(1),
        run_next: 1,
        now: 0,
    });
    let cached_bytes_max = options.rows_cached_bytes_max;
    let mut state = StoreState::new(directory.partitions, directory.slice_millis, cached_bytes_max);
    let [relocations, names, paused, dead] = catalog.filled()?;
    state.relocations = crate::state::layers::Layers::new(relocations, cached_bytes_max);
    state.names = crate::state::layers::Layers::new(names, cached_bytes_max);
    state.paused = crate::state::layers::Layers::new(paused, cached_bytes_max);
    state.dead = crate::state::layers::Layers::new(dead, cached_bytes_max);
    state.commit = meta.commit;
    state.generation = meta.generation;
    state.now = Timestamp::from_millis(meta.now);
    state.counted = contents.counted;
    restore_rows(&mut state, &contents)?;
    restore_runs(&mut state, directory, files, contents)?;
    Ok(Restored { state, meta })
}

fn restore_rows(
    state: &mut StoreState,
    contents: &CatalogContents,
) -> Result<(), EmbeddedOpenError> {
    let outside = || {
        EmbeddedOpenError::Damaged(
            "the catalog has rows of a partition that the store does not have".into(),
        )
    };
    for (partition, namespace, counts) in &contents.counts {
        let own = state.partitions.get_mut(usize::from(partition.get())).ok_or_else(outside)?;
        let tally = NamespaceCounts { counts: *counts, ..NamespaceCounts::default() };
        own.counts.insert(namespace.clone(), tally);
    }
    for (partition, namespace, groups) in &contents.letter_groups {
        let own = state.partitions.get_mut(usize::from(partition.get())).ok_or_else(outside)?;
        let row = NamespaceGroups { groups: groups.clone(), changed: false };
        own.letter_groups.insert(namespace.clone(), row);
    }
    for (partition, last) in &contents.last_batches {
        let own = state.partitions.get_mut(usize::from(partition.get())).ok_or_else(outside)?;
        own.batch = last.batch;
    }
    for lease in &contents.leases {
        state.leases.insert(lease.seat, lease.clone());
    }
    Ok(())
}

fn restore_runs(
    state: &mut StoreState,
    directory: &Directory,
    files: &RunFiles,
    contents: CatalogContents,
) -> Result<(), EmbeddedOpenError> {
    let mut bits: HashMap<RunNo, Vec<(u32, Vec<u8>)>> = HashMap::new();
    for (no, chunk, bytes) in contents.bits {
        bits.entry(no).or_default().push((chunk, bytes));
    }
    let mut timeline = Timeline::new(directory.slice_millis);
    let mut listed = contents.runs;
    listed.sort_by_key(|listed| (listed.generation, listed.no));
    for entry in listed {
        let run = open_run(files, &entry)?;
        for (chunk, bytes) in bits.remove(&entry.no).unwrap_or_default() {
            if !run.ended.restore(chunk, &bytes) {
                let fault = StorageFault::damaged(
                    &files.path(entry.no),
                    0,
                    "its bits in the catalog have the wrong length",
                );
                return Err(fault.into());
            }
        }
        match entry.kind {
            RunKind::History => {
                let index = open_index(files, &run).map(Arc::new);
                state.history.add(Arc::new(run), index, &entry.swept);
            }
            kind => timeline.add(run, kind),
        }
    }
    state.timeline = Arc::new(timeline);
    Ok(())
}

fn open_run(files: &RunFiles, listed: &ListedRun) -> Result<SortedRun, EmbeddedOpenError> {
    let path = files.path(listed.no);
    if !path.exists() {
        let what = format!("{} is missing, though the catalog lists it", path.display());
        return Err(EmbeddedOpenError::Damaged(what));
    }
    let run = SortedRun::open(files, listed.no, listed.generation)?;
    if run.file_bytes != listed.file_bytes {
        let what = "its length differs from the one in the catalog";
        return Err(StorageFault::damaged(&path, run.file_bytes, what).into());
    }
    Ok(run)
}

/// Opens the index of a run of history; `None` if it is missing or cannot be read.
fn open_index(files: &RunFiles, run: &SortedRun) -> Option<FireIndex> {
    FireIndex::open(files, run).unwrap_or_else(|fault| {
        tracing::error!(%fault, "index of history unreadable, built again from the records");
        None
    })
}

/// Writes the indexes of runs that have none: runs that an earlier version wrote, and those whose
/// index is damaged. If that fails, opening does not: reads build what they need in memory.
pub(crate) fn index_history(files: &RunFiles, block_bytes: usize, state: &mut StoreState) {
    let mut written = 0u64;
    for history in state.history.runs.iter_mut().filter(|history| history.index.is_none()) {
        let index = FireIndex::of_run(files, &history.run, block_bytes);
        match index.and_then(|index| index.write(files)) {
            Ok(index) => {
                history.index = Some(Arc::new(index));
                written += 1;
            }
            Err(fault) => tracing::warn!(%fault, "index of history not written"),
        }
    }
    if written > 0 {
        tracing::info!(runs = written, "index of history written");
    }
}

/// Removes files of runs that are not listed.
pub(crate) fn remove_leftovers(
    files: &RunFiles,
    state: &StoreState,
) -> Result<u64, EmbeddedOpenError> {
    let dir = files.dir();
    let history = state.history.runs.iter().map(|history| history.run.no);
    let listed: std::collections::HashSet<RunNo> =
        state.timeline.runs().map(|run| run.no).chain(history).collect();
    let mut removed = 0;
    for entry in fs::read_dir(dir).map_err(|source| StorageFault::io("read", dir, source))? {
        let entry = entry.map_err(|source| StorageFault::io("read", dir, source))?;
        let part = entry.file_name().to_str().and_then(run_part_of);
        if let Some((no, part)) = part.filter(|(no, _)| !listed.contains(no)) {
            files.remove_part(no, part)?;
            removed += 1;
        }
    }
    Ok(removed)
}
