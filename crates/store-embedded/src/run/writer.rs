//! Writing a run.
//!
//! When `finish` has returned, every byte of the file is on disk; its name is once the directory is
//! synced, which the caller does for all new files together. A run that is not finished leaves no
//! file: on a full disk it is tried again and again.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use punctual_core::Timestamp;

use super::format::{Fence, Footer, HEADER_BYTES, KeysWriter, RunSection, header, number_of};
use super::{RunFiles, RunNo, format};
use crate::fault::StorageFault;
use crate::key::EntryKey;

/// Bytes that are collected before a write to the file.
const WRITE_BYTES: usize = 256 << 10;

/// A run that is being written.
#[derive(Debug)]
pub(crate) struct RunWriter {
    no: RunNo,
    path: PathBuf,
    unfinished: Unfinished,
    file: BufWriter<File>,
    offset: u64,
    block_bytes: usize,
    block: Option<OpenBlock>,
    fences: Vec<Fence>,
    sections: Vec<RunSection>,
    last: Option<EntryKey>,
    count: u32,
    newest: Timestamp,
    bodies_bytes: u64,
}

/// Removes the file when dropped, unless the run was finished.
#[derive(Debug)]
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // A file that cannot be removed now is removed at the next opening.
            let _ = std::fs::remove_file(path);
        }
    }
}

struct OpenBlock {
    first: EntryKey,
    keys: KeysWriter,
    bodies: Vec<u8>,
}

impl std::fmt::Debug for OpenBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.first.fmt(f)
    }
}

/// A run that was written.
#[derive(Debug)]
pub(crate) struct WrittenRun {
    pub(crate) no: RunNo,
    pub(crate) footer: Footer,
    pub(crate) file_bytes: u64,
}

impl RunWriter {
    pub(crate) fn new(
        files: &RunFiles,
        no: RunNo,
        block_bytes: usize,
    ) -> Result<Self, StorageFault> {
        let path = files.path(no);
        let file =
            File::create(&path).map_err(|source| StorageFault::io("create", &path, source))?;
        let mut writer = Self {
            no,
            unfinished: Unfinished(Some(path.clone())),
            path,
            file: BufWriter::with_capacity(WRITE_BYTES, file),
            offset: 0,
            block_bytes,
            block: None,
            fences: Vec::new(),
            sections: Vec::new(),
            last: None,
            count: 0,
            newest: Timestamp::EPOCH,
            bodies_bytes: 0,
        };
        writer.write(&header(no))?;
        debug_assert_eq!(writer.offset, HEADER_BYTES);
        Ok(writer)
    }

    /// Adds an entry. Keys must not decrease.
    pub(crate) fn push(&mut self, key: EntryKey, body: &[u8]) -> Result<(), StorageFault> {
        debug_assert!(self.last.is_none_or(|last| last <= key), "keys go back");
        let full = self.block.as_ref().is_some_and(|block| {
            let bytes = block.bodies.len() + block.keys.count() as usize * format::ENTRY_BYTES;
            !block.keys.takes(key) || bytes >= self.block_bytes
        });
        if full {
            self.flush_block()?;
        }
        let block = self.block.get_or_insert_with(|| OpenBlock {
            first: key,
            keys: KeysWriter::new(key),
            bodies: Vec::new(),
        });
        block.bodies.extend_from_slice(body);
        let end = u32::try_from(block.bodies.len()).expect("a block ends at its bound");
        block.keys.push(key, end, format::body_sum(self.no, body));
        self.last = Some(key);
        self.count += 1;
        self.bodies_bytes += body.len() as u64;
        self.note_section(key);
        Ok(())
    }

    /// Notes when a fire ended, for a run of history.
    pub(crate) fn note_newest(&mut self, ended_at: Timestamp) {
        self.newest = self.newest.max(ended_at);
    }

    fn note_section(&mut self, key: EntryKey) {
        let section = match self.sections.last_mut() {
            Some(section) if section.partition == key.partition => section,
            _ => {
                self.sections.push(RunSection {
                    partition: key.partition,
                    count: 0,
                    relocated: 0,
                    numbers: (u128::MAX, 0),
                });
                self.sections.last_mut().expect("just pushed")
            }
        };
        section.count += 1;
        if key.at == key.id.due() {
            let number = number_of(key.id);
            let (low, high) = section.numbers;
            section.numbers = (low.min(number), high.max(number));
        } else {
            section.relocated += 1;
        }
    }

    fn flush_block(&mut self) -> Result<(), StorageFault> {
        let Some(OpenBlock { first, keys, bodies }) = self.block.take() else {
            return Ok(());
        };
        let bodies_bytes = u32::try_from(bodies.len()).expect("a block ends at its bound");
        let offset = self.offset;
        self.fences.push(Fence {
            first,
            offset,
            count: keys.count(),
            bodies_bytes,
            ordinal: self.count - keys.count(),
        });
        let front = keys.finish(self.no, offset, bodies_bytes);
        self.write(&front)?;
        self.write(&bodies)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StorageFault> {
        self.offset += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|source| StorageFault::io("write", &self.path, source))
    }

    /// Makes the file durable. `None` if nothing was added: then there is no file.
    pub(crate) fn finish(mut self) -> Result<Option<WrittenRun>, StorageFault> {
        self.flush_block()?;
        let Some(last) = self.last else {
            return Ok(None);
        };
        let footer = Footer {
            fences: std::mem::take(&mut self.fences),
            sections: std::mem::take(&mut self.sections),
            last,
            count: self.count,
            newest: self.newest,
            bodies_bytes: self.bodies_bytes,
        };
        let bytes = footer.to_bytes(self.no, self.offset);
        self.write(&bytes)?;
        let Self { no, path, file, mut unfinished, offset: file_bytes, .. } = self;
        let file = file
            .into_inner()
            .map_err(|error| StorageFault::io("write", &path, error.into_error()))?;
        file.sync_data().map_err(|source| StorageFault::io("sync", &path, source))?;
        unfinished.0 = None;
        Ok(Some(WrittenRun { no, footer, file_bytes }))
    }
}
