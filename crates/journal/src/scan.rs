//! Scanning a journal: what it contains, and whether what is wrong with it may be cut off.
//!
//! A scan replays every commit after the checkpoint, in order, and returns where to continue, or an
//! error. It changes nothing on disk: `open` cuts off a torn tail.
//!
//! The rule about damage relies on one property of the writer: a group is written only when the
//! group before it is durable. So with L the last commit of the unbroken sequence from the start,
//! - a head (with this file's salt) whose group begins at or before L + 1 belongs to the group that
//!   was being written: the crash tore it, it was never acknowledged, and it may be cut off;
//! - a head whose group begins after L + 1 proves that commit L + 1 was durable once: it was
//!   damaged since, and the journal refuses to open.
//!
//! A head counts as proof even if its payload is bad. Frames are searched for at every offset where
//! one could begin, in the rest of the file and in all later files.
//! After a clean close nothing may be cut off.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::commit::{CommitNo, Replay};
use super::disk::Disk;
use super::error::{Dropped, DroppedWhy, JournalError};
use super::frame::{
    ALIGN, CLOSED_NAME, ClosingMark, FORMAT_VERSION, FRAMES_AT, FileHeader, FileName, FrameHead,
    HEAD_BYTES, HeaderFault, StoreId, file_name, is_end, payload_sum, read_name,
};

/// A file of the chain.
#[derive(Debug)]
pub(super) struct ScannedFile {
    pub(super) path: PathBuf,
    pub(super) header: FileHeader,
    /// Its length on disk, which is less than the header says if it was cut.
    pub(super) length: u64,
    /// The last commit in it, if it has any.
    pub(super) last: Option<CommitNo>,
    /// Where its good frames end.
    pub(super) end: u64,
    /// Where its last group begins; `end` if it has none.
    pub(super) group_at: u64,
}

/// What the directory contains, and where to continue.
#[derive(Debug)]
pub(super) struct Scan {
    /// Files that the checkpoint no longer needs.
    pub(super) obsolete: Vec<ScannedFile>,
    /// The chain from the first needed file on.
    pub(super) files: Vec<ScannedFile>,
    /// The index of the file to continue with; those after it are empty.
    pub(super) active: usize,
    pub(super) last: CommitNo,
    pub(super) replayed: u64,
    /// Heads of the torn group that could be read later if they were left.
    pub(super) stale: Vec<u64>,
    pub(super) dropped: Option<Dropped>,
    pub(super) closed: bool,
    pub(super) spares: Vec<u64>,
    pub(super) unfinished: Vec<PathBuf>,
}

/// A tail that will be cut off, unless a later file contradicts it.
struct TornTail {
    file: usize,
    stale: Vec<u64>,
    dropped: Dropped,
}

struct ScanReader<'a> {
    after: CommitNo,
    last: CommitNo,
    group: CommitNo,
    replayed: u64,
    tail: Option<TornTail>,
    replay: &'a mut Replay<'a>,
}

/// Reads the journal in `dir`. `None` if there is none.
pub(super) fn scan(
    disk: &Disk,
    dir: &Path,
    store: StoreId,
    after: CommitNo,
    replay: &mut Replay<'_>,
) -> Result<Option<Scan>, JournalError> {
    let listing = list(dir)?;
    let closed = match listing.closed {
        Some(path) => Some(read_closed(&path, store)?),
        None => None,
    };
    let mut files = Vec::new();
    for number in &listing.numbers {
        files.push(open_file(disk, dir, *number, store)?);
    }
    let Some(first) = files.first() else {
        return match (closed, after) {
            (None, CommitNo(0)) => Ok(None),
            (closed, _) => Err(JournalError::SteppedBack {
                checkpoint: closed.map_or(after, |closed| closed.last.max(after)),
                last: CommitNo(0),
            }),
        };
    };
    for (number, file) in (first.header.number..).zip(&files) {
        if file.header.number != number {
            return Err(JournalError::Missing { file: dir.join(file_name(number)) });
        }
    }
    let needed = first_needed(disk, &files, after)?;
    let obsolete: Vec<ScannedFile> = files.drain(..needed).collect();
    let last = before_first(disk, &files[0])?;
    if last > after {
        return Err(JournalError::Gap { checkpoint: after, first: CommitNo(last.0 + 1) });
    }

    let group = CommitNo(0);
    // Shortens the lifetime of the callback to that of this reader.
    let replay: &mut Replay<'_> = &mut |commit, payload| replay(commit, payload);
    let mut reading = ScanReader { after, last, group, replayed: 0, tail: None, replay };
    for (index, file) in files.iter_mut().enumerate() {
        reading.read(disk, index, file)?;
    }
    let ScanReader { last, replayed, tail, .. } = reading;
    if last < after {
        return Err(JournalError::SteppedBack { checkpoint: after, last });
    }
    if let Some(closed) = closed {
        refuse_after_close(closed, last, tail.as_ref())?;
    }
    let with_frames = files.iter().rposition(|file| file.last.is_some());
    let active = tail.as_ref().map(|tail| tail.file).or(with_frames).unwrap_or(0);
    let (stale, dropped) = tail.map_or((Vec::new(), None), |t| (t.stale, Some(t.dropped)));
    let closed = closed.is_some();
    let Listing { spares, unfinished, .. } = listing;
    Ok(Some(Scan {
        obsolete,
        files,
        active,
        last,
        replayed,
        stale,
        dropped,
        closed,
        spares,
        unfinished,
    }))
}

impl ScanReader<'_> {
    /// Reads the frames of one file, then what follows them.
    fn read(
        &mut self,
        disk: &Disk,
        index: usize,
        file: &mut ScannedFile,
    ) -> Result<(), JournalError> {
        let bytes = read_whole(disk, file)?;
        let mut at = FRAMES_AT;
        while let Some((head, payload)) = frame_at(&bytes, at, file.header.salt) {
            self.expect(file, at, head)?;
            if self.group != head.group {
                self.group = head.group;
                file.group_at = at;
            }
            if head.commit > self.after {
                (self.replay)(head.commit, payload)
                    .map_err(|source| JournalError::Replay { commit: head.commit, source })?;
                self.replayed += 1;
            }
            self.last = head.commit;
            file.last = Some(head.commit);
            at += head.frame_bytes();
        }
        file.end = at;
        if file.last.is_none() {
            file.group_at = at;
        }
        self.after_frames(index, file, &bytes)
    }

    /// A good frame must have the next number, and must belong to its group.
    fn expect(&mut self, file: &ScannedFile, at: u64, head: FrameHead) -> Result<(), JournalError> {
        let next = CommitNo(self.last.0 + 1);
        let joins = head.commit == next;
        let in_group =
            head.group == head.commit || (head.group == self.group && file.last.is_some());
        if !joins || !in_group {
            return Err(damaged(&file.path, at, next, format!("found {}", head.commit)));
        }
        // It looked like a torn tail, but a later file continues where it ends: nothing is missing.
        match self.tail.take() {
            Some(tail) if !tail.stale.is_empty() => Err(self.contradicted(&tail)),
            _ => Ok(()),
        }
    }

    /// No good frame begins at `file.end`: this is the end, a torn group, or damage.
    fn after_frames(
        &mut self,
        index: usize,
        file: &ScannedFile,
        bytes: &[u8],
    ) -> Result<(), JournalError> {
        let next = CommitNo(self.last.0 + 1);
        let mut stale = Vec::new();
        let mut stale_end = file.end;
        for (at, head) in heads_from(bytes, file.end, file.header.salt) {
            let of_this_group = head.group == self.group && file.last.is_some();
            if head.group != next && !of_this_group {
                let what = format!("{} at byte {at} was written later", head.commit);
                return Err(damaged(&file.path, file.end, next, what));
            }
            if head.commit < next {
                let what = format!("{} is at byte {at} a second time", head.commit);
                return Err(damaged(&file.path, file.end, next, what));
            }
            stale.push(at);
            stale_end = at.saturating_add(head.frame_bytes());
        }
        let rest = rest(bytes, file.end);
        let why = if !stale.is_empty() {
            DroppedWhy::TornGroup
        } else if file.header.file_bytes.saturating_sub(file.end) < HEAD_BYTES as u64 {
            return Ok(());
        } else if file.length < file.header.file_bytes {
            DroppedWhy::FileCut { bytes_missing: file.header.file_bytes - file.length }
        } else if !is_end(rest) {
            DroppedWhy::BadBytes
        } else {
            return Ok(());
        };
        if let Some(tail) = &self.tail {
            return Err(self.contradicted(tail));
        }
        let recognised = stale_end.min(file.length).saturating_sub(file.end);
        let at_least = (HEAD_BYTES.min(rest.len())) as u64;
        let dropped = Dropped {
            file: file.path.clone(),
            offset: file.end,
            commit: next,
            bytes: recognised.max(at_least),
            commits: stale.len() as u64,
            why,
        };
        self.tail = Some(TornTail { file: index, stale, dropped });
        Ok(())
    }

    /// A torn tail must be the end of everything, but here a later file continues.
    fn contradicted(&self, tail: &TornTail) -> JournalError {
        let Dropped { file, offset, commit, .. } = &tail.dropped;
        damaged(file, *offset, *commit, "a later file was written after it".to_owned())
    }
}

/// The frame at `at`, if head and payload are sound.
fn frame_at(bytes: &Bytes, at: u64, salt: u64) -> Option<(FrameHead, Bytes)> {
    let head = FrameHead::read(rest(bytes, at), salt)?;
    let start = usize::try_from(at).ok()?.checked_add(HEAD_BYTES)?;
    let end = start.checked_add(head.length as usize)?;
    // The padding must be there too, or the next frame would begin beyond the file.
    if at.checked_add(head.frame_bytes())? > bytes.len() as u64 {
        return None;
    }
    let payload = bytes.slice(start..end);
    (payload_sum(&payload) == head.payload_sum).then_some((head, payload))
}

/// All heads at or after `from`, skipping the payload of each.
fn heads_from(bytes: &[u8], from: u64, salt: u64) -> impl Iterator<Item = (u64, FrameHead)> {
    let mut at = from;
    std::iter::from_fn(move || {
        while at < bytes.len() as u64 {
            let here = at;
            if let Some(head) = FrameHead::read(rest(bytes, here), salt) {
                at = here.saturating_add(head.frame_bytes());
                return Some((here, head));
            }
            at += ALIGN as u64;
        }
        None
    })
}

fn rest(bytes: &[u8], at: u64) -> &[u8] {
    usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or(&[])
}

fn refuse_after_close(
    closed: ClosingMark,
    last: CommitNo,
    tail: Option<&TornTail>,
) -> Result<(), JournalError> {
    match tail {
        Some(TornTail { dropped: Dropped { file, offset, commit, why, .. }, .. }) => {
            Err(damaged(file, *offset, *commit, format!("{why}, although it was closed cleanly")))
        }
        None if last == closed.last => Ok(()),
        None => Err(JournalError::SteppedBack { checkpoint: closed.last, last }),
    }
}

/// The last file that begins at or before the commit after the checkpoint; earlier files are not
/// needed.
fn first_needed(
    disk: &Disk,
    files: &[ScannedFile],
    after: CommitNo,
) -> Result<usize, JournalError> {
    let mut needed = 0;
    for (index, file) in files.iter().enumerate().skip(1) {
        match first_head(disk, file)? {
            Some(head) if head.commit.0 <= after.0.saturating_add(1) => needed = index,
            _ => break,
        }
    }
    Ok(needed)
}

/// The commit before the first of the chain. A file other than number 1 is never left alone without
/// frames, so its first head must be readable.
fn before_first(disk: &Disk, file: &ScannedFile) -> Result<CommitNo, JournalError> {
    match first_head(disk, file)? {
        Some(head) if head.commit.0 > 0 => Ok(CommitNo(head.commit.0 - 1)),
        _ if file.header.number == 1 => Ok(CommitNo(0)),
        _ => Err(JournalError::Damaged {
            file: file.path.clone(),
            offset: FRAMES_AT,
            commit: None,
            what: "the oldest file does not begin with a commit".to_owned(),
        }),
    }
}

fn first_head(disk: &Disk, file: &ScannedFile) -> Result<Option<FrameHead>, JournalError> {
    let bytes = disk
        .open_for_reading(&file.path)
        .and_then(|open| disk.read_at(&open, FRAMES_AT, HEAD_BYTES))
        .map_err(|source| JournalError::io("read", &file.path, source))?;
    Ok(FrameHead::read(&bytes, file.header.salt))
}

fn read_whole(disk: &Disk, file: &ScannedFile) -> Result<Bytes, JournalError> {
    let length = file.length.min(file.header.file_bytes);
    let length = usize::try_from(length).expect("a file of a journal fits in memory");
    disk.open_for_reading(&file.path)
        .and_then(|open| disk.read_at(&open, 0, length))
        .map(Bytes::from)
        .map_err(|source| JournalError::io("read", &file.path, source))
}

/// The names in the directory, by what they mean.
struct Listing {
    numbers: Vec<u64>,
    spares: Vec<u64>,
    unfinished: Vec<PathBuf>,
    closed: Option<PathBuf>,
}

fn list(dir: &Path) -> Result<Listing, JournalError> {
    let mut listing =
        Listing { numbers: Vec::new(), spares: Vec::new(), unfinished: Vec::new(), closed: None };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listing),
        entries => entries.map_err(|source| JournalError::io("list", dir, source))?,
    };
    for entry in entries {
        let path = entry.map_err(|source| JournalError::io("list", dir, source))?.path();
        match path.file_name().and_then(|name| name.to_str()).map_or(FileName::Foreign, read_name) {
            FileName::File(number) => listing.numbers.push(number),
            FileName::Spare(number) => listing.spares.push(number),
            FileName::Closed => listing.closed = Some(dir.join(CLOSED_NAME)),
            FileName::Unfinished => listing.unfinished.push(path),
            FileName::LostAndFound => {}
            FileName::Foreign => {
                let what = "only files of the journal may be in its directory".to_owned();
                return Err(JournalError::Foreign { file: path, what });
            }
        }
    }
    listing.numbers.sort_unstable();
    listing.spares.sort_unstable();
    Ok(listing)
}

fn open_file(
    disk: &Disk,
    dir: &Path,
    number: u64,
    store: StoreId,
) -> Result<ScannedFile, JournalError> {
    let path = dir.join(file_name(number));
    let io = |source| JournalError::io("read", &path, source);
    let file = disk.open_for_reading(&path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let head = usize::try_from(FRAMES_AT).expect("a page");
    let page = disk.read_at(&file, 0, head).map_err(io)?;
    let header = FileHeader::read(&page).map_err(|fault| header_fault(fault, &path))?;
    if header.store != store {
        return Err(other_store(path));
    }
    if header.number != number {
        let what = format!("its header belongs to {}", file_name(header.number));
        return Err(JournalError::Foreign { file: path, what });
    }
    let end = FRAMES_AT;
    Ok(ScannedFile { path, header, length, last: None, end, group_at: end })
}

fn read_closed(path: &Path, store: StoreId) -> Result<ClosingMark, JournalError> {
    let bytes = fs::read(path).map_err(|source| JournalError::io("read", path, source))?;
    let closed = ClosingMark::read(&bytes).map_err(|fault| header_fault(fault, path))?;
    if closed.store != store {
        return Err(other_store(path.to_owned()));
    }
    Ok(closed)
}

fn other_store(file: PathBuf) -> JournalError {
    JournalError::Foreign { file, what: "it belongs to another store".to_owned() }
}

fn header_fault(fault: HeaderFault, path: &Path) -> JournalError {
    let file = path.to_owned();
    match fault {
        HeaderFault::NotOurs => {
            JournalError::Foreign { file, what: "it is not a journal file".to_owned() }
        }
        HeaderFault::Version(found) => {
            JournalError::Version { file, found, supported: FORMAT_VERSION }
        }
        HeaderFault::Damaged => {
            let what = "its header is damaged".to_owned();
            JournalError::Damaged { file, offset: 0, commit: None, what }
        }
    }
}

fn damaged(file: &Path, offset: u64, commit: CommitNo, what: String) -> JournalError {
    JournalError::Damaged { file: file.to_owned(), offset, commit: Some(commit), what }
}
