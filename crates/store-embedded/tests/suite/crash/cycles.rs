//! Cycles: start a writer, kill it, and compare what the next one reads with the model.
//!
//! The model has every acknowledged batch of each partition; at most one batch more was in flight
//! at the kill. What the next writer reads decides whether that batch was applied; anything else is
//! a failure.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual_core::{Epoch, PartitionId, Seat, TaskId, Timestamp};
use punctual_store::conformance::fixtures::{NOW, TTL, broker};
use punctual_store::{Batch, LeaseStore as _, MemoryStore, TaskStore as _};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::plan::{PlanRandom, PlanStart, WriterPlan, digest, ids_of};
use super::view;
use super::writer::{Budgets, PARTITIONS, RETENTION, WriterConfig, partitions};

/// Tasks of each partition that are read even after they have ended.
const TRACKED_MAX: usize = 300;
/// Lines of a difference that are printed.
const DIFFERENCES_MAX: usize = 12;
/// A writer that has not opened the store within this time has failed.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// What happened in all cycles.
#[derive(Debug, Default)]
pub(crate) struct CrashReport {
    pub(crate) cycles: u64,
    /// Batches that were acknowledged, and the changes in them.
    pub(crate) commits: u64,
    pub(crate) changes: u64,
    /// Kills before the store was open, before everything was read, while writing, while closing.
    killed_opening: u64,
    killed_reading: u64,
    killed_writing: u64,
    killed_closing: u64,
    closed: u64,
    /// Batches in flight at a kill that were applied, and that were not.
    applied: u64,
    not_applied: u64,
    /// Openings that replayed commits, and that cut off a torn tail.
    replays: u64,
    torn: u64,
    live_most: usize,
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cycles, commits, changes, applied, not_applied, replays, torn, .. } = self;
        write!(
            f,
            "{cycles} cycles: {commits} batches with {changes} changes acknowledged, 0 lost; \
             in flight at a kill: {applied} applied, {not_applied} not; killed while opening {}, \
             reading {}, writing {}, closing {}; {} closed; {replays} openings replayed, {torn} \
             cut off a torn tail; {} live tasks at most",
            self.killed_opening,
            self.killed_reading,
            self.killed_writing,
            self.killed_closing,
            self.closed,
            self.live_most,
        )
    }
}

/// A long run reports its progress after so many cycles.
const CYCLES_PER_LINE: u64 = 50;

/// How far a writer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WriterPhase {
    Opening,
    Reading,
    Writing,
    Closing,
    Closed,
}

/// How long a writer runs.
#[derive(Debug, Clone, Copy)]
enum WriterLifetime {
    /// From its start.
    FromStart(Duration),
    /// From when it has printed everything that it reads.
    FromView(Duration),
}

impl WriterLifetime {
    /// Waits until the time is over; false if the writer ended by itself.
    fn wait(self, viewed: &Receiver<()>) -> bool {
        let over = |time| match viewed.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Some(true),
            Err(RecvTimeoutError::Disconnected) => Some(false),
            Ok(()) => None,
        };
        match self {
            Self::FromStart(time) => over(time),
            Self::FromView(time) => over(OPEN_TIMEOUT).or_else(|| over(time)),
        }
        .expect("the signal comes once")
    }
}

pub(crate) struct Cycles {
    budgets: Budgets,
    seed: u64,
    random: PlanRandom,
    dir: TempDir,
    model: MemoryStore,
    runtime: Runtime,
    owners: Vec<PartitionModel>,
    history_since: Timestamp,
    closed_before: bool,
    report: CrashReport,
}

/// What is known about one partition.
struct PartitionModel {
    partition: PartitionId,
    epoch: Epoch,
    /// Acquisitions that were begun since the last one that was answered.
    acquiring: u32,
    plan: Option<WriterPlan>,
    /// The batch that was in flight when the writer was killed.
    pending: Option<Batch>,
    tracked: VecDeque<TaskId>,
    seen: Vec<String>,
}

impl Cycles {
    pub(crate) fn new(budgets: Budgets, seed: u64) -> Self {
        let model_of = |partition| PartitionModel {
            partition,
            epoch: Epoch::NONE,
            acquiring: 0,
            plan: None,
            pending: None,
            tracked: VecDeque::new(),
            seen: Vec::new(),
        };
        Self {
            budgets,
            seed,
            random: PlanRandom::new(seed),
            dir: tempfile::tempdir().expect("a temporary directory"),
            model: MemoryStore::new(partitions()),
            runtime: tokio::runtime::Builder::new_current_thread().build().expect("a runtime"),
            owners: partitions().iter().map(model_of).collect(),
            history_since: Timestamp::EPOCH,
            closed_before: false,
            report: CrashReport::default(),
        }
    }

    pub(crate) fn run(mut self, cycles: u64) -> CrashReport {
        for cycle in 0..cycles {
            if let Err(difference) = self.cycle(cycle) {
                self.fail(cycle, &difference);
            }
            self.report.cycles += 1;
            if self.report.cycles.is_multiple_of(CYCLES_PER_LINE) {
                println!("{:?}: {} of {cycles} cycles", self.budgets, self.report.cycles);
            }
        }
        // A last writer that only reads checks what the last kill left.
        let mut config = self.config(cycles);
        config.batches_max = 0;
        let phase = self.run_writer(&config, WriterLifetime::FromStart(OPEN_TIMEOUT));
        match phase {
            Ok(WriterPhase::Closed) => self.report,
            Ok(phase) => {
                self.fail(cycles, &format!("the last writer did not finish while {phase:?}"))
            }
            Err(difference) => self.fail(cycles, &difference),
        }
    }

    /// Panics, and keeps the directory for inspection.
    fn fail(self, cycle: u64, difference: &str) -> ! {
        let dir = self.dir.keep();
        panic!(
            "in cycle {cycle}: {difference}\nso far: {}\nthe store is kept in {}; again with \
             PUNCTUAL_CRASH_SEED={} PUNCTUAL_CRASH_CYCLES={}",
            self.report,
            dir.display(),
            self.seed,
            cycle + 1,
        );
    }

    fn config(&mut self, cycle: u64) -> WriterConfig {
        let tracked = self.dir.path().join("tracked");
        let ids = self.owners.iter().flat_map(|owner| &owner.tracked);
        let text: String = ids.map(|id| format!("{id}\n")).collect();
        std::fs::write(&tracked, text).expect("space for a list");
        let closes = self.random.below(6) == 0;
        WriterConfig {
            dir: self.store(),
            budgets: self.budgets,
            seed: self.random.next(),
            now: NOW.after(Duration::from_secs(cycle * 20)),
            grows: cycle % 30 < 18,
            sweeps: cycle % 7 == 6,
            batches_max: if closes { self.random.below(100) } else { u64::MAX },
            history_since: self.history_since,
            tracked,
        }
    }

    /// Copies what the last writer left, as evidence, before the next one changes it. A store with
    /// default limits is too large to be copied each time.
    fn keep_copy(&self) {
        if self.budgets != Budgets::Tiny || !self.store().exists() {
            return;
        }
        let copy = self.dir.path().join("left");
        let _ = std::fs::remove_dir_all(&copy);
        let copied = Command::new("cp").arg("-a").arg(self.store()).arg(&copy).status();
        assert!(copied.is_ok_and(|status| status.success()), "space for a copy");
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn cycle(&mut self, cycle: u64) -> Result<(), String> {
        let config = self.config(cycle);
        let most = match self.budgets {
            Budgets::Tiny => 400_000,
            Budgets::Usual => 2_000_000,
        };
        let wait = Duration::from_micros(self.random.below(most));
        // Some are killed while they open and read; most get to write.
        let lifetime = match self.random.below(4) {
            0 => WriterLifetime::FromStart(wait),
            _ => WriterLifetime::FromView(wait),
        };
        let phase = self.run_writer(&config, lifetime)?;
        self.closed_before = phase == WriterPhase::Closed;
        let report = &mut self.report;
        let count = match phase {
            WriterPhase::Opening => &mut report.killed_opening,
            WriterPhase::Reading => &mut report.killed_reading,
            WriterPhase::Writing => &mut report.killed_writing,
            WriterPhase::Closing => &mut report.killed_closing,
            WriterPhase::Closed => &mut report.closed,
        };
        *count += 1;
        Ok(())
    }

    /// Runs a writer for a while, and processes what it printed until it was killed.
    fn run_writer(
        &mut self,
        config: &WriterConfig,
        lifetime: WriterLifetime,
    ) -> Result<WriterPhase, String> {
        self.keep_copy();
        let stderr_path = self.dir.path().join("stderr");
        let stderr = std::fs::File::create(&stderr_path).expect("space for its output");
        let mut command = config.command();
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("the test binary starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let child = Arc::new(Mutex::new(child));
        let (viewed, killer_signal) = channel();
        let killer = {
            let child = Arc::clone(&child);
            std::thread::spawn(move || lifetime.wait(&killer_signal) && kill(&child))
        };
        let mut phase = WriterPhase::Opening;
        for owner in &mut self.owners {
            owner.seen.clear();
            owner.plan = None;
        }
        let mut outcome = Ok(());
        for line in lines.lines().map_while(Result::ok) {
            if let (Some(line), true) = (line.strip_prefix('@'), outcome.is_ok()) {
                if line == "viewed" && matches!(lifetime, WriterLifetime::FromView(_)) {
                    // The thread that kills may have ended meanwhile.
                    let _ = viewed.send(());
                }
                outcome = self.on_line(config, line, &mut phase);
                if outcome.is_err() {
                    // At once, so that the directory stays as it is.
                    kill(&child);
                }
            }
        }
        drop(viewed);
        let killed = killer.join().expect("the thread does not panic");
        let status =
            child.lock().expect("no thread panics with the lock").wait().expect("it was started");
        outcome?;
        if phase != WriterPhase::Closed && !killed {
            let stderr = std::fs::read_to_string(stderr_path).unwrap_or_default();
            return Err(format!("the writer ended by itself while {phase:?}: {status}\n{stderr}"));
        }
        Ok(phase)
    }

    fn on_line(
        &mut self,
        config: &WriterConfig,
        line: &str,
        phase: &mut WriterPhase,
    ) -> Result<(), String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "opening" => {}
            "opened" => {
                *phase = WriterPhase::Reading;
                self.opened(rest)?;
            }
            "view" => {
                let (number, line) = rest.split_once(' ').ok_or("an incomplete line")?;
                self.partition_model(number)?.seen.push(line.to_owned());
            }
            "viewed" => {
                *phase = WriterPhase::Writing;
                self.compare(config)?;
            }
            "acquire" => self.partition_model(rest)?.acquiring += 1,
            "acquired" => self.acquired(config, rest)?,
            "plan" => self.planned(rest)?,
            "ack" => self.acknowledged(rest)?,
            "closing" => *phase = WriterPhase::Closing,
            "closed" => *phase = WriterPhase::Closed,
            _ => return Err(format!("unknown line {line:?}")),
        }
        Ok(())
    }

    fn partition_model(&mut self, number: &str) -> Result<&mut PartitionModel, String> {
        let index: Option<usize> = number.parse().ok().filter(|index| *index < PARTITIONS.into());
        index
            .map(|index| &mut self.owners[index])
            .ok_or_else(|| format!("unknown partition {number:?}"))
    }

    fn opened(&mut self, rest: &str) -> Result<(), String> {
        let [replayed, clean, torn] = words(rest)?;
        self.report.replays += u64::from(replayed != "0");
        self.report.torn += u64::from(torn == "true");
        if self.closed_before && (clean != "true" || replayed != "0" || torn == "true") {
            return Err(format!(
                "closed cleanly, but {replayed} commits replayed (clean: {clean}, torn: {torn})"
            ));
        }
        Ok(())
    }

    /// Decides whether the batch in flight was applied, and checks that nothing else differs.
    fn compare(&mut self, config: &WriterConfig) -> Result<(), String> {
        let Self { model, runtime, owners, report, .. } = self;
        for owner in owners {
            let tracked: Vec<_> = owner.tracked.iter().copied().collect();
            let partition = owner.partition;
            let view = || {
                let since = config.history_since;
                runtime.block_on(view::lines(model, partition, &tracked, since))
            };
            let Some(without) = difference(&owner.seen, &view()) else {
                report.not_applied += u64::from(owner.pending.take().is_some());
                continue;
            };
            let Some(pending) = owner.pending.take() else {
                return Err(format!("{partition}: {without}"));
            };
            let batch = format!("{pending:?}");
            runtime.block_on(model.apply(partition, owner.epoch, pending)).expect("a valid batch");
            if let Some(with) = difference(&owner.seen, &view()) {
                return Err(format!(
                    "{partition}: half a batch, or something else is wrong.\nwithout the batch \
                     in flight: {without}\nwith it: {with}\nthe batch: {batch:.2000}"
                ));
            }
            report.applied += 1;
        }
        Ok(())
    }

    fn acquired(&mut self, config: &WriterConfig, rest: &str) -> Result<(), String> {
        let [number, epoch] = words(rest)?;
        let epoch = epoch.parse().ok().and_then(Epoch::new).ok_or("no epoch")?;
        let owner = self.partition_model(number)?;
        let (before, acquiring) = (owner.epoch.get(), std::mem::take(&mut owner.acquiring));
        if epoch.get() <= before || epoch.get() > before + acquiring {
            return Err(format!(
                "e{before} was followed by {epoch} after {acquiring} acquisitions"
            ));
        }
        owner.epoch = epoch;
        let partition = owner.partition;
        let Self { model, runtime, history_since, report, .. } = self;
        let (tasks, letters) = runtime.block_on(async {
            // Acquisitions that were not answered count too.
            for _ in before..epoch.get() {
                let seat = Seat::Partition(partition);
                model
                    .acquire(seat, &broker("writer"), TTL, config.now)
                    .await
                    .expect("its own seat");
            }
            if config.sweeps {
                model.sweep(partition, epoch, RETENTION, config.now).await.expect("a sweep");
                let age = u64::try_from(RETENTION.history_age.as_millis()).expect("minutes");
                *history_since = Timestamp::from_millis(config.now.as_millis() - age + 1);
            }
            view::tasks_and_letters(model, partition).await
        });
        report.live_most = report.live_most.max(tasks.len());
        let start = PlanStart {
            partition,
            epoch,
            seed: config.seed ^ u64::from(partition.get()),
            now: config.now,
            grows: config.grows,
            live: tasks,
            letters,
        };
        self.partition_model(number)?.plan = Some(WriterPlan::new(start));
        Ok(())
    }

    fn planned(&mut self, rest: &str) -> Result<(), String> {
        let [number, no, word] = words(rest)?;
        let owner = self.partition_model(number)?;
        let batch = owner.plan.as_mut().ok_or("a plan before the partition was acquired")?.batch();
        if batch.number.get().to_string() != no || digest(&batch).to_string() != word {
            return Err(format!("batch {no} is not the model's: {batch:.2000?}"));
        }
        owner.tracked.extend(ids_of(&batch));
        let superfluous = owner.tracked.len().saturating_sub(TRACKED_MAX);
        owner.tracked.drain(..superfluous);
        owner.pending = Some(batch);
        Ok(())
    }

    fn acknowledged(&mut self, rest: &str) -> Result<(), String> {
        let [number, no] = words(rest)?;
        let owner = self.partition_model(number)?;
        let (partition, epoch) = (owner.partition, owner.epoch);
        let batch = owner.pending.take().filter(|batch| batch.number.get().to_string() == no);
        let batch = batch.ok_or("an acknowledgement without a batch")?;
        self.report.commits += 1;
        self.report.changes += batch.changes.len() as u64;
        let applied = self.runtime.block_on(self.model.apply(partition, epoch, batch));
        applied.map_err(|error| format!("the model refuses batch {no}: {error}"))
    }
}

/// Kills the process; true if it was still running.
fn kill(child: &Mutex<Child>) -> bool {
    let mut child = child.lock().expect("no thread panics with the lock");
    matches!(child.try_wait(), Ok(None)) && child.kill().is_ok()
}

fn words<const N: usize>(text: &str) -> Result<[&str; N], String> {
    let words: Vec<&str> = text.split(' ').collect();
    words.try_into().map_err(|_| format!("{text:?} does not have {N} words"))
}

/// The first lines in which what was read differs from the model.
fn difference(seen: &[String], want: &[String]) -> Option<String> {
    if seen == want {
        return None;
    }
    let [has, should] = [seen, want].map(|lines| lines.iter().collect::<BTreeSet<_>>());
    let some = |sign, lines: &mut dyn Iterator<Item = &&String>| {
        lines
            .take(DIFFERENCES_MAX)
            .map(|line| format!("\n  {sign} {line:.900}"))
            .collect::<String>()
    };
    let lost = some("lost ", &mut should.difference(&has));
    let extra = some("extra", &mut has.difference(&should));
    let order = if lost.is_empty() && extra.is_empty() { "\n  only the order differs" } else { "" };
    Some(format!("{} lines instead of {}:{lost}{extra}{order}", seen.len(), want.len()))
}
