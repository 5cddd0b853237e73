//! Opening: from files to a state, or a refusal that says why.
//!
//! In: a directory. Out: everything up to the last durable commit: what the catalog lists, and on top of it what the journal has
//! since. A listed run that is missing or does not end as it should is refused; a file that no list names is a leftover
//! of an unfinished checkpoint, and goes.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use punctual_core::Timestamp;

use crate::catalog::{Catalog, Contents, Listed, Meta, RunKind};
use crate::directory::{Directory, OpenError};
use crate::fault::Fault;
use crate::journal::{CommitNo, Dropped};
use crate::options::Options;
use crate::run::{Files, Run, RunNo, run_no_of};
use crate::state::{State, Tally};
use crate::timeline::Timeline;

/// What opening found.
#[derive(Debug)]
pub struct OpenReport {
    /// Commits that were only in the journal.
    pub replayed: u64,
    /// Whether the store had been closed, or was left by a crash, or is new.
    pub closed_cleanly: bool,
    /// A torn end of the journal that was cut off. Nobody had been told that it was durable.
    pub dropped: Option<Dropped>,
    /// Files of an unfinished checkpoint that were removed.
    pub leftovers: u64,
}

/// What is on disk, in memory.
pub(crate) struct Restored {
    pub(crate) state: State,
    pub(crate) meta: Meta,
}

/// Reads what the catalog lists.
pub(crate) fn restore(
    directory: &Directory,
    options: &Options,
    catalog: &Catalog,
    files: &Files,
) -> Result<Restored, OpenError> {
    let contents = catalog.contents()?;
    let meta = contents.meta.unwrap_or(Meta {
        commit: CommitNo(0),
        birth: crate::run::Birth(1),
        run_next: 1,
        now: 0,
    });
    let cached_bytes_max = options.rows_cached_bytes_max;
    let mut state = State::new(directory.partitions, directory.slice_millis, cached_bytes_max);
    let [standings, names, paused, dead] = catalog.filled()?;
    state.standings = crate::layers::Layers::new(standings, cached_bytes_max);
    state.names = crate::layers::Layers::new(names, cached_bytes_max);
    state.paused = crate::layers::Layers::new(paused, cached_bytes_max);
    state.dead = crate::layers::Layers::new(dead, cached_bytes_max);
    state.commit = meta.commit;
    state.birth = meta.birth;
    state.now = Timestamp::from_millis(meta.now);
    restore_rows(&mut state, &contents)?;
    restore_runs(&mut state, directory, files, contents)?;
    Ok(Restored { state, meta })
}

fn restore_rows(state: &mut State, contents: &Contents) -> Result<(), OpenError> {
    let outside = || OpenError::Damaged("the catalog names a partition that is not there".into());
    for (partition, namespace, counts) in &contents.counts {
        let own = state.partitions.get_mut(usize::from(partition.get())).ok_or_else(outside)?;
        let tally = Tally { counts: *counts, changed: false };
        own.counts.insert(namespace.clone(), tally);
    }
    for (partition, owned) in &contents.owned {
        let own = state.partitions.get_mut(usize::from(partition.get())).ok_or_else(outside)?;
        own.batch = owned.batch;
    }
    for lease in &contents.leases {
        state.leases.insert(lease.seat, lease.clone());
    }
    Ok(())
}

fn restore_runs(
    state: &mut State,
    directory: &Directory,
    files: &Files,
    contents: Contents,
) -> Result<(), OpenError> {
    let mut bits: HashMap<RunNo, Vec<(u32, Vec<u8>)>> = HashMap::new();
    for (no, chunk, bytes) in contents.bits {
        bits.entry(no).or_default().push((chunk, bytes));
    }
    let mut timeline = Timeline::new(directory.slice_millis);
    let mut listed = contents.runs;
    listed.sort_by_key(|listed| (listed.birth, listed.no));
    for entry in listed {
        let run = open_run(files, &entry)?;
        for (chunk, bytes) in bits.remove(&entry.no).unwrap_or_default() {
            if !run.ended.restore(chunk, &bytes) {
                let fault = Fault::damaged(&files.path(entry.no), 0, "its bits do not fit it");
                return Err(fault.into());
            }
        }
        match entry.kind {
            RunKind::History => state.history.add(Arc::new(run), &entry.swept),
            kind => timeline.add(run, kind),
        }
    }
    state.timeline = Arc::new(timeline);
    Ok(())
}

fn open_run(files: &Files, listed: &Listed) -> Result<Run, OpenError> {
    let path = files.path(listed.no);
    if !path.exists() {
        let what = format!("{} is missing, though the catalog lists it", path.display());
        return Err(OpenError::Damaged(what));
    }
    let run = Run::open(files, listed.no, listed.birth)?;
    if run.file_bytes != listed.file_bytes {
        let what = "its length is not the one that the catalog lists";
        return Err(Fault::damaged(&path, run.file_bytes, what).into());
    }
    Ok(run)
}

/// Removes files that look like runs and are not listed.
pub(crate) fn remove_leftovers(files: &Files, state: &State) -> Result<u64, OpenError> {
    let dir = files.dir();
    let history = state.history.runs.iter().map(|history| history.run.no);
    let listed: std::collections::HashSet<RunNo> =
        state.timeline.runs().map(|run| run.no).chain(history).collect();
    let mut removed = 0;
    for entry in fs::read_dir(dir).map_err(|source| Fault::io("read", dir, source))? {
        let entry = entry.map_err(|source| Fault::io("read", dir, source))?;
        let no = entry.file_name().to_str().and_then(run_no_of);
        if let Some(no) = no.filter(|no| !listed.contains(no)) {
            files.remove(no)?;
            removed += 1;
        }
    }
    Ok(removed)
}
