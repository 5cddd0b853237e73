//! Cycles: start a writer, kill it, compare what the next one sees with the model.
//!
//! Invariant: of each partition the model has every acknowledged batch, and at most one more is in question. The next sight
//! of the store decides whether that one was made; a sight that fits neither is a failure.

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

use crate::plan::{Dice, Plan, Start, digest, ids_of};
use crate::sight;
use crate::writer::{Budgets, Orders, PARTITIONS, RETENTION, partitions};

/// Tasks whose end is looked at, of each partition.
const ASKED_MAX: usize = 300;
/// Lines of a difference that are worth reading.
const DIFFERENCES_MAX: usize = 12;
/// A writer that does not even open within this time is a failure, not slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came of it all.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) cycles: u64,
    /// Batches that were acknowledged, and the changes in them.
    pub(crate) commits: u64,
    pub(crate) changes: u64,
    /// Killed before the store was open, before everything was seen, while writing, while closing.
    killed_opening: u64,
    killed_reading: u64,
    killed_writing: u64,
    killed_closing: u64,
    closed: u64,
    /// Batches on their way at a kill that turned out to be made, and not to be.
    made: u64,
    unmade: u64,
    /// Openings that had commits to replay, and that cut off a torn end.
    replays: u64,
    torn: u64,
    living_most: usize,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cycles, commits, changes, made, unmade, replays, torn, .. } = self;
        write!(
            f,
            "{cycles} cycles: {commits} batches with {changes} changes acknowledged, 0 lost; on their way at \
             a kill: {made} made, {unmade} not; killed while opening {}, reading {}, writing {}, closing {}; \
             {} closed; {replays} openings replayed, {torn} cut a torn end; {} living tasks at most",
            self.killed_opening,
            self.killed_reading,
            self.killed_writing,
            self.killed_closing,
            self.closed,
            self.living_most,
        )
    }
}

/// A long run says how far it is after so many.
const CYCLES_TOLD: u64 = 50;

/// How far a writer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Opening,
    Reading,
    Writing,
    Closing,
    Closed,
}

/// How long a writer lives.
#[derive(Debug, Clone, Copy)]
enum Life {
    /// From its first instruction.
    FromStart(Duration),
    /// From when it has said all that it sees.
    FromSight(Duration),
}

impl Life {
    /// Waits for its end; false if the writer came to an end by itself.
    fn is_over(self, seen: &Receiver<()>) -> bool {
        let over = |time| match seen.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Some(true),
            Err(RecvTimeoutError::Disconnected) => Some(false),
            Ok(()) => None,
        };
        match self {
            Self::FromStart(time) => over(time),
            Self::FromSight(time) => over(PATIENCE).or_else(|| over(time)),
        }
        .expect("it is seen once")
    }
}

pub(crate) struct Cycles {
    budgets: Budgets,
    seed: u64,
    dice: Dice,
    dir: TempDir,
    model: MemoryStore,
    runtime: Runtime,
    owners: Vec<Known>,
    history_since: Timestamp,
    closed_before: bool,
    found: Found,
}

/// What is known of one partition.
struct Known {
    partition: PartitionId,
    epoch: Epoch,
    /// Acquisitions that were begun since the last that was answered.
    acquiring: u32,
    plan: Option<Plan>,
    /// On its way when the writer was killed.
    pending: Option<Batch>,
    asked: VecDeque<TaskId>,
    seen: Vec<String>,
}

impl Cycles {
    pub(crate) fn new(budgets: Budgets, seed: u64) -> Self {
        let known = |partition| Known {
            partition,
            epoch: Epoch::NONE,
            acquiring: 0,
            plan: None,
            pending: None,
            asked: VecDeque::new(),
            seen: Vec::new(),
        };
        Self {
            budgets,
            seed,
            dice: Dice::new(seed),
            dir: tempfile::tempdir().expect("a temporary directory"),
            model: MemoryStore::new(partitions()),
            runtime: tokio::runtime::Builder::new_current_thread().build().expect("a runtime"),
            owners: partitions().iter().map(known).collect(),
            history_since: Timestamp::EPOCH,
            closed_before: false,
            found: Found::default(),
        }
    }

    pub(crate) fn run(mut self, cycles: u64) -> Found {
        for cycle in 0..cycles {
            if let Err(difference) = self.cycle(cycle) {
                self.give_up(cycle, &difference);
            }
            self.found.cycles += 1;
            if self.found.cycles.is_multiple_of(CYCLES_TOLD) {
                println!("{:?}: {} of {cycles} cycles", self.budgets, self.found.cycles);
            }
        }
        // The last kill is looked at too, by a writer that only reads.
        let mut orders = self.orders(cycles);
        orders.batches_max = 0;
        let stage = self.live_and_die(&orders, Life::FromStart(PATIENCE));
        match stage {
            Ok(Stage::Closed) => self.found,
            Ok(stage) => {
                self.give_up(cycles, &format!("the last writer got stuck while {stage:?}"))
            }
            Err(difference) => self.give_up(cycles, &difference),
        }
    }

    /// The directory stays, for whoever looks into it.
    fn give_up(self, cycle: u64, difference: &str) -> ! {
        let dir = self.dir.keep();
        panic!(
            "in cycle {cycle}: {difference}\nso far: {}\nthe store is kept in {}; again with \
             PUNCTUAL_CRASH_SEED={} PUNCTUAL_CRASH_CYCLES={}",
            self.found,
            dir.display(),
            self.seed,
            cycle + 1,
        );
    }

    fn orders(&mut self, cycle: u64) -> Orders {
        let asked = self.dir.path().join("asked");
        let ids = self.owners.iter().flat_map(|known| &known.asked);
        let text: String = ids.map(|id| format!("{id}\n")).collect();
        std::fs::write(&asked, text).expect("room for a list");
        let closes = self.dice.below(6) == 0;
        Orders {
            dir: self.store(),
            budgets: self.budgets,
            seed: self.dice.roll(),
            now: NOW.after(Duration::from_secs(cycle * 20)),
            grows: cycle % 30 < 18,
            sweeps: cycle % 7 == 6,
            batches_max: if closes { self.dice.below(100) } else { u64::MAX },
            history_since: self.history_since,
            asked,
        }
    }

    /// What the last writer left, before the next one touches it: the evidence, if there is something to find. The store
    /// of usual budgets is too large to be copied each time.
    fn keep_copy(&self) {
        if self.budgets != Budgets::Tiny || !self.store().exists() {
            return;
        }
        let copy = self.dir.path().join("left");
        let _ = std::fs::remove_dir_all(&copy);
        let copied = Command::new("cp").arg("-a").arg(self.store()).arg(&copy).status();
        assert!(copied.is_ok_and(|status| status.success()), "room for a copy");
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn cycle(&mut self, cycle: u64) -> Result<(), String> {
        let orders = self.orders(cycle);
        let most = match self.budgets {
            Budgets::Tiny => 400_000,
            Budgets::Usual => 2_000_000,
        };
        let wait = Duration::from_micros(self.dice.below(most));
        // Some are killed while they open and read, which takes ever longer; most get to write.
        let life = match self.dice.below(4) {
            0 => Life::FromStart(wait),
            _ => Life::FromSight(wait),
        };
        let stage = self.live_and_die(&orders, life)?;
        self.closed_before = stage == Stage::Closed;
        let found = &mut self.found;
        let count = match stage {
            Stage::Opening => &mut found.killed_opening,
            Stage::Reading => &mut found.killed_reading,
            Stage::Writing => &mut found.killed_writing,
            Stage::Closing => &mut found.killed_closing,
            Stage::Closed => &mut found.closed,
        };
        *count += 1;
        Ok(())
    }

    /// Lets a writer live for a while, and takes in what it said until it was killed.
    fn live_and_die(&mut self, orders: &Orders, life: Life) -> Result<Stage, String> {
        self.keep_copy();
        let said = self.dir.path().join("stderr");
        let stderr = std::fs::File::create(&said).expect("room for what it says");
        let mut command = orders.command();
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("this program starts again");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let child = Arc::new(Mutex::new(child));
        let (news, heard) = channel();
        let killer = {
            let child = Arc::clone(&child);
            std::thread::spawn(move || life.is_over(&heard) && kill(&child))
        };
        let mut stage = Stage::Opening;
        for known in &mut self.owners {
            known.seen.clear();
            known.plan = None;
        }
        let mut outcome = Ok(());
        for line in lines.lines().map_while(Result::ok) {
            if let (Some(line), true) = (line.strip_prefix('@'), outcome.is_ok()) {
                if line == "seen" && matches!(life, Life::FromSight(_)) {
                    // A killer that has lost its patience meanwhile listens no more.
                    let _ = news.send(());
                }
                outcome = self.hear(orders, line, &mut stage);
                if outcome.is_err() {
                    // At once, so that what is wrong stays as it is.
                    kill(&child);
                }
            }
        }
        drop(news);
        let killed = killer.join().expect("the killer lives");
        let status = child.lock().expect("nobody panics").wait().expect("it was started");
        outcome?;
        if stage != Stage::Closed && !killed {
            let said = std::fs::read_to_string(said).unwrap_or_default();
            return Err(format!("the writer ended by itself while {stage:?}: {status}\n{said}"));
        }
        Ok(stage)
    }

    fn hear(&mut self, orders: &Orders, line: &str, stage: &mut Stage) -> Result<(), String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "opening" => {}
            "opened" => {
                *stage = Stage::Reading;
                self.opened(rest)?;
            }
            "see" => {
                let (number, line) = rest.split_once(' ').ok_or("half a line")?;
                self.known(number)?.seen.push(line.to_owned());
            }
            "seen" => {
                *stage = Stage::Writing;
                self.compare(orders)?;
            }
            "acquire" => self.known(rest)?.acquiring += 1,
            "acquired" => self.acquired(orders, rest)?,
            "plan" => self.planned(rest)?,
            "ack" => self.acknowledged(rest)?,
            "closing" => *stage = Stage::Closing,
            "closed" => *stage = Stage::Closed,
            _ => return Err(format!("what is {line:?}?")),
        }
        Ok(())
    }

    fn known(&mut self, number: &str) -> Result<&mut Known, String> {
        let index: Option<usize> = number.parse().ok().filter(|index| *index < PARTITIONS.into());
        index.map(|index| &mut self.owners[index]).ok_or_else(|| format!("which is {number:?}?"))
    }

    fn opened(&mut self, rest: &str) -> Result<(), String> {
        let [replayed, clean, torn] = words(rest)?;
        self.found.replays += u64::from(replayed != "0");
        self.found.torn += u64::from(torn == "true");
        if self.closed_before && (clean != "true" || replayed != "0" || torn == "true") {
            return Err(format!(
                "closed, and yet {replayed} commits replayed (clean: {clean}, torn: {torn})"
            ));
        }
        Ok(())
    }

    /// Decides whether the batch in question was made, and that nothing else is different.
    fn compare(&mut self, orders: &Orders) -> Result<(), String> {
        let Self { model, runtime, owners, found, .. } = self;
        for known in owners {
            let asked: Vec<_> = known.asked.iter().copied().collect();
            let partition = known.partition;
            let view = || {
                let since = orders.history_since;
                runtime.block_on(sight::lines(model, partition, &asked, since))
            };
            let Some(without) = difference(&known.seen, &view()) else {
                found.unmade += u64::from(known.pending.take().is_some());
                continue;
            };
            let Some(pending) = known.pending.take() else {
                return Err(format!("{partition}: {without}"));
            };
            let batch = format!("{pending:?}");
            runtime.block_on(model.apply(partition, known.epoch, pending)).expect("a valid batch");
            if let Some(with) = difference(&known.seen, &view()) {
                return Err(format!(
                    "{partition}: half a batch, or something else is wrong.\nwithout the batch on its \
                     way: {without}\nwith it: {with}\nthe batch: {batch:.2000}"
                ));
            }
            found.made += 1;
        }
        Ok(())
    }

    fn acquired(&mut self, orders: &Orders, rest: &str) -> Result<(), String> {
        let [number, epoch] = words(rest)?;
        let epoch = epoch.parse().ok().and_then(Epoch::new).ok_or("no epoch")?;
        let known = self.known(number)?;
        let (before, acquiring) = (known.epoch.get(), std::mem::take(&mut known.acquiring));
        if epoch.get() <= before || epoch.get() > before + acquiring {
            return Err(format!(
                "e{before} was followed by {epoch} after {acquiring} acquisitions"
            ));
        }
        known.epoch = epoch;
        let partition = known.partition;
        let Self { model, runtime, history_since, found, .. } = self;
        let (tasks, letters) = runtime.block_on(async {
            // Acquisitions that nobody was told of count too.
            for _ in before..epoch.get() {
                let seat = Seat::Partition(partition);
                model
                    .acquire(seat, &broker("writer"), TTL, orders.now)
                    .await
                    .expect("its own seat");
            }
            if orders.sweeps {
                model.sweep(partition, epoch, RETENTION, orders.now).await.expect("a sweep");
                let age = u64::try_from(RETENTION.history_age.as_millis()).expect("minutes");
                *history_since = Timestamp::from_millis(orders.now.as_millis() - age + 1);
            }
            sight::tasks_and_letters(model, partition).await
        });
        found.living_most = found.living_most.max(tasks.len());
        let start = Start {
            partition,
            epoch,
            seed: orders.seed ^ u64::from(partition.get()),
            now: orders.now,
            grows: orders.grows,
            living: tasks,
            letters,
        };
        self.known(number)?.plan = Some(Plan::new(start));
        Ok(())
    }

    fn planned(&mut self, rest: &str) -> Result<(), String> {
        let [number, no, word] = words(rest)?;
        let known = self.known(number)?;
        let batch = known.plan.as_mut().ok_or("a plan before the partition is taken")?.batch();
        if batch.number.get().to_string() != no || digest(&batch).to_string() != word {
            return Err(format!("batch {no} is not the model's: {batch:.2000?}"));
        }
        known.asked.extend(ids_of(&batch));
        let superfluous = known.asked.len().saturating_sub(ASKED_MAX);
        known.asked.drain(..superfluous);
        known.pending = Some(batch);
        Ok(())
    }

    fn acknowledged(&mut self, rest: &str) -> Result<(), String> {
        let [number, no] = words(rest)?;
        let known = self.known(number)?;
        let (partition, epoch) = (known.partition, known.epoch);
        let batch = known.pending.take().filter(|batch| batch.number.get().to_string() == no);
        let batch = batch.ok_or("an acknowledgement of nothing")?;
        self.found.commits += 1;
        self.found.changes += batch.changes.len() as u64;
        let applied = self.runtime.block_on(self.model.apply(partition, epoch, batch));
        applied.map_err(|error| format!("the model refuses batch {no}: {error}"))
    }
}

/// Kills for good; true if there was something to kill.
fn kill(child: &Mutex<Child>) -> bool {
    let mut child = child.lock().expect("nobody panics");
    matches!(child.try_wait(), Ok(None)) && child.kill().is_ok()
}

fn words<const N: usize>(text: &str) -> Result<[&str; N], String> {
    let words: Vec<&str> = text.split(' ').collect();
    words.try_into().map_err(|_| format!("{text:?} has not {N} words"))
}

/// The first lines in which what was seen is not what should be.
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
