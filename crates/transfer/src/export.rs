//! Export: writes everything in a store to one file.
//!
//! The store is read in pages, by partition and namespace. Each task is followed by the records of
//! its fires, and so is each dead letter whose task has ended. `format` defines the lines.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use punctual_core::{DeadLetter, FireId, Namespace, PartitionId, Seat, TaskId};
use punctual_store::{Filter, LeaseStore as _, Position, TaskStore as _};
use punctual_store_any::{PartitionCount, StoreLocation};

use crate::file::{ExportWriter, FORMAT, LineCounts};
use crate::format::{
    ExportHeader, ExportLine, TimeText, export_dead_letter, export_fire, export_task,
};
use crate::store::TransferStore;
use crate::{OnEvent, TransferEvent, now};

/// Tasks or dead letters that are read at once.
const PAGE: usize = 500;
/// How many fires of one task are exported, the newest first: a store returns them in one piece.
pub(crate) const FIRES_MAX: usize = 10_000;
/// The mode of a file: it has the payloads and headers of all callers.
const FILE_MODE: u32 = 0o600;

/// What to export, and where to.
#[derive(Debug)]
pub struct ExportOptions {
    /// The store to read. It must exist.
    pub location: StoreLocation,
    /// Where the lines go.
    pub output: ExportOutput,
    /// Whether the records of fires are exported.
    pub history: bool,
}

/// Where an export is written.
#[derive(Debug)]
pub enum ExportOutput {
    /// The standard output of this process.
    Stdout,
    /// A file. It appears under this name when it is complete.
    File(PathBuf),
}

/// How much was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportSummary {
    /// Live tasks.
    pub tasks: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Records of fires.
    pub fires: u64,
}

/// Exports a store.
pub async fn export(
    options: ExportOptions,
    on_event: OnEvent<'_>,
) -> anyhow::Result<ExportSummary> {
    let ExportOptions { location, output, history } = options;
    let source = TransferStore::open(location, PartitionCount::Existing, on_event).await?;
    let (epoch_max, running) = owners(&source).await?;
    if let Some(broker) = running {
        on_event(TransferEvent::Notice(format!(
            "broker {broker} is running: changes during the export may be missing from it"
        )));
    }
    let header = ExportHeader {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        from: source.name.clone(),
        exported_at: TimeText(now()),
        partitions: source.partitions.count(),
        epoch_max,
    };
    let counts = match &output {
        ExportOutput::Stdout => {
            write(&source, history, header, std::io::stdout().lock(), on_event).await?.1
        }
        ExportOutput::File(path) => {
            // The file gets its name when it is complete.
            let mut unfinished = path.clone().into_os_string();
            unfinished.push(".unfinished");
            let cannot = || format!("cannot write {}", path.display());
            let file = create_private(unfinished.as_ref()).with_context(cannot)?;
            let (file, counts) = write(&source, history, header, file, on_event).await?;
            file.sync_all().with_context(cannot)?;
            std::fs::rename(&unfinished, path).with_context(cannot)?;
            counts
        }
    };
    source.close().await?;
    let LineCounts { tasks, dead, fires } = counts;
    Ok(ExportSummary { tasks, dead_letters: dead, fires })
}

/// Creates a file that only this user can read, or truncates one and makes it so.
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    Ok(file)
}

/// Returns the largest epoch, and a broker that holds a lease, if one does.
async fn owners(source: &TransferStore) -> anyhow::Result<(u32, Option<String>)> {
    let (mut epoch_max, mut running) = (0, None);
    for partition in source.partitions.iter() {
        let Some(lease) = source.store.holder(Seat::Partition(partition)).await? else { continue };
        epoch_max = epoch_max.max(lease.epoch.get());
        if source.store.is_shared() && lease.holds_at(now()) {
            running = Some(lease.broker.to_string());
        }
    }
    Ok((epoch_max, running))
}

async fn write<W: Write>(
    source: &TransferStore,
    history: bool,
    header: ExportHeader,
    out: W,
    on_event: OnEvent<'_>,
) -> anyhow::Result<(W, LineCounts)> {
    let mut expected = 0;
    let mut parts = Vec::new();
    for partition in source.partitions.iter() {
        for namespace in source.store.all_namespaces(partition).await? {
            let counts = source.store.counts(partition, &namespace).await?;
            let lines = counts.scheduled + counts.paused + counts.dead_letters;
            expected += u64::try_from(lines).unwrap_or(0);
            parts.push((partition, namespace));
        }
    }
    on_event(TransferEvent::Started { total: Some(expected) });
    let writer = ExportWriter::begin(BufWriter::new(out), header)?;
    let mut exporter = Exporter { source, writer, history, done: 0, on_event };
    for (partition, namespace) in &parts {
        exporter.write_tasks(*partition, namespace).await?;
        exporter.write_dead_letters(*partition, namespace).await?;
    }
    (exporter.on_event)(TransferEvent::Finished);
    // Pages leave damaged values out; an export must not.
    if let Some(store) = source.store.shared()
        && let Some(place) = store.damaged_place()
    {
        let count = store.damaged_values();
        bail!(
            "{count} damaged values of the store cannot be exported; repair or remove them, then \
             export again; one of them is {place}"
        );
    }
    let (out, counts) = exporter.writer.end()?;
    let out = out.into_inner().map_err(|error| error.into_error()).context("cannot write")?;
    Ok((out, counts))
}

struct Exporter<'a, 'e, W: Write> {
    source: &'a TransferStore,
    writer: ExportWriter<BufWriter<W>>,
    history: bool,
    /// Tasks and dead letters written so far.
    done: u64,
    on_event: OnEvent<'e>,
}

impl<W: Write> Exporter<'_, '_, W> {
    async fn write_tasks(
        &mut self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> anyhow::Result<()> {
        let filter = Filter::all(namespace.clone());
        let mut after = Position::START;
        loop {
            let page = self.source.store.list(partition, &filter, after, PAGE).await?;
            for task in &page.items {
                self.writer.write(&ExportLine::Task(Box::new(export_task(task))))?;
                self.write_fires(task.id, None).await?;
            }
            self.advance(page.items.len());
            match page.next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    async fn write_dead_letters(
        &mut self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> anyhow::Result<()> {
        let mut after = None;
        loop {
            let page = self.source.store.dead(partition, namespace, after, PAGE).await?;
            // The fires of a redriven letter are those of the task that it belongs to.
            let ids: Vec<TaskId> = page.items.iter().map(|it| it.fire_id().task).collect();
            let live = self.source.store.get(partition, &ids).await?;
            let mut last = None;
            for ((letter, live), id) in page.items.iter().zip(live).zip(ids) {
                self.writer.write(&ExportLine::Dead(Box::new(export_dead_letter(letter))))?;
                // The fires of a live task follow the task. Letters of one task are adjacent.
                if live.is_none() && last.replace(id) != Some(id) {
                    self.write_fires(id, Some(letter)).await?;
                }
            }
            self.advance(page.items.len());
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Writes the records of a task's fires, except the fire of `letter`, which the letter
    /// contains.
    async fn write_fires(&mut self, id: TaskId, letter: Option<&DeadLetter>) -> anyhow::Result<()> {
        if !self.history {
            return Ok(());
        }
        let written: Option<FireId> = letter.map(DeadLetter::fire_id);
        for record in self.source.store.history(id.partition(), id, FIRES_MAX).await? {
            if Some(record.fire_id) != written {
                self.writer.write(&ExportLine::Fire(Box::new(export_fire(&record))))?;
            }
        }
        Ok(())
    }

    fn advance(&mut self, lines: usize) {
        self.done += lines as u64;
        (self.on_event)(TransferEvent::Progress(self.done));
    }
}
