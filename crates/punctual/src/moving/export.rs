//! `punctual export`: everything that a store has, in one file.
//!
//! In: a store. Out: lines in the order of partitions and namespaces, in pages, so that no store is held in memory. A task is followed by
//! how its fires ended, and so is a dead letter whose task is no more.
//! Not here: what the lines look like (`form`).

#![expect(clippy::print_stderr, reason = "this is what a person reads beside the file")]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use indicatif::ProgressBar;
use punctual_core::{DeadLetter, FireId, Namespace, PartitionId, TaskId};
use punctual_store::{Filter, Position};

use super::file::{FORMAT, Totals, Writer};
use super::form::{At, Header, Line, dead_form, fire_form, task_form};
use super::house::{House, Missing};
use super::{Where, bar, now};

/// Tasks or letters that are asked for at once.
const PAGE: usize = 500;
/// Fires of one task that move, the newest: a store gives them in one piece.
const FIRES_MAX: usize = 10_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    #[command(flatten)]
    place: Where,

    /// The file to write; without it the export goes to the standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Leave out how fires ended
    #[arg(long)]
    without_history: bool,
}

/// Does it.
pub(crate) async fn export(flags: Export) -> anyhow::Result<()> {
    let house = House::open(&flags.place, Missing::Refuse).await?;
    house.warnings.iter().for_each(|warning| eprintln!("{warning}"));
    let (epoch_max, running) = owners(&house).await?;
    if let Some(broker) = running {
        eprintln!(
            "{broker} is running: what changes during the export may be missing, or as it was before"
        );
    }
    let header = Header {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        from: house.name.clone(),
        exported_at: At(now()),
        partitions: house.partitions.count(),
        epoch_max,
    };
    let totals = match &flags.out {
        None => write(&house, &flags, header, std::io::stdout().lock()).await?.1,
        Some(path) => {
            // A file by that name is whole.
            let mut unfinished = path.clone().into_os_string();
            unfinished.push(".unfinished");
            let cannot = || format!("cannot write {}", path.display());
            let file = File::create(&unfinished).with_context(cannot)?;
            let (file, totals) = write(&house, &flags, header, file).await?;
            file.sync_all().with_context(cannot)?;
            std::fs::rename(&unfinished, path).with_context(cannot)?;
            totals
        }
    };
    house.close().await?;
    let Totals { tasks, dead, fires } = totals;
    eprintln!("exported {tasks} tasks, {dead} dead letters, {fires} records of fires");
    Ok(())
}

/// The largest epoch, and a broker that is running if one seems to be.
async fn owners(house: &House) -> anyhow::Result<(u32, Option<String>)> {
    let (mut epoch_max, mut running) = (0, None);
    for partition in house.partitions.iter() {
        let Some(lease) = house.holder(partition).await? else { continue };
        epoch_max = epoch_max.max(lease.epoch.get());
        if house.is_shared() && lease.holds_at(now()) {
            running = Some(lease.broker.to_string());
        }
    }
    Ok((epoch_max, running))
}

async fn write<W: Write>(
    house: &House,
    flags: &Export,
    header: Header,
    out: W,
) -> anyhow::Result<(W, Totals)> {
    let mut expected = 0;
    let mut parts = Vec::new();
    for partition in house.partitions.iter() {
        for namespace in house.namespaces(partition).await? {
            let counts = house.counts(partition, &namespace).await?;
            let some = counts.scheduled + counts.paused + counts.dead_letters;
            expected += u64::try_from(some).unwrap_or(0);
            parts.push((partition, namespace));
        }
    }
    let writer = Writer::begin(BufWriter::new(out), header)?;
    let mut work = Work {
        house,
        writer,
        bar: bar(Some(expected), "exporting"),
        history: !flags.without_history,
    };
    for (partition, namespace) in &parts {
        work.tasks(*partition, namespace).await?;
        work.letters(*partition, namespace).await?;
    }
    work.bar.finish_and_clear();
    let (out, totals) = work.writer.end()?;
    let out = out.into_inner().map_err(|error| error.into_error()).context("cannot write")?;
    Ok((out, totals))
}

struct Work<'a, W: Write> {
    house: &'a House,
    writer: Writer<BufWriter<W>>,
    bar: ProgressBar,
    history: bool,
}

impl<W: Write> Work<'_, W> {
    async fn tasks(&mut self, partition: PartitionId, namespace: &Namespace) -> anyhow::Result<()> {
        let filter = Filter::all(namespace.clone());
        let mut after = Position::START;
        loop {
            let page = self.house.list(partition, &filter, after, PAGE).await?;
            for task in &page.items {
                self.writer.write(&Line::Task(Box::new(task_form(task))))?;
                self.fires(task.id, None).await?;
            }
            self.bar.inc(page.items.len() as u64);
            match page.next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    async fn letters(
        &mut self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> anyhow::Result<()> {
        let mut after = None;
        loop {
            let page = self.house.dead(partition, namespace, after, PAGE).await?;
            let ids: Vec<TaskId> = page.items.iter().map(|letter| letter.task.id).collect();
            let living = self.house.get(partition, &ids).await?;
            let mut last = None;
            for (letter, living) in page.items.iter().zip(living) {
                self.writer.write(&Line::Dead(Box::new(dead_form(letter))))?;
                // The fires of a living task came with it; letters of one task come one after the other.
                if living.is_none() && last.replace(letter.task.id) != Some(letter.task.id) {
                    self.fires(letter.task.id, Some(letter)).await?;
                }
            }
            self.bar.inc(page.items.len() as u64);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// How the fires of a task ended, without the one that a letter says already.
    async fn fires(&mut self, id: TaskId, letter: Option<&DeadLetter>) -> anyhow::Result<()> {
        if !self.history {
            return Ok(());
        }
        let told: Option<FireId> = letter.map(DeadLetter::fire_id);
        for record in self.house.history(id, FIRES_MAX).await? {
            if Some(record.fire_id) != told {
                self.writer.write(&Line::Fire(Box::new(fire_form(&record))))?;
            }
        }
        Ok(())
    }
}
