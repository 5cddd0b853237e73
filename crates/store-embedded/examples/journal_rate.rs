//! How fast the journal is, beside a bare write + fdatasync of the same bytes in the same run.
//!
//! `cargo run --release -p punctual-store-embedded --example journal_rate [DIR] [FILE_MIB] [APPLY_NANOS]`
//!
//! Callers append batches of 1,000 tasks of 180 bytes and wait until each is durable. The bare
//! side writes as many bytes per fdatasync as the journal did on average, into a file whose blocks
//! were written before: the best that a group commit of these bytes can do. APPLY_NANOS is how
//! long the store is pretended to take per task once it is durable.

#![expect(clippy::print_stdout, reason = "a measurement is printed for people")]
#![expect(clippy::disallowed_methods, reason = "a measurement reads the machine's clock")]

use std::error::Error;
use std::fs::{self, File};
use std::hint;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

use source::journal::{Class, CommitNo, Entry, Journal, JournalOptions, JournalStats, StoreId};

/// The journal's own source: it is no part of the crate's public face.
#[path = "../src"]
#[allow(dead_code, unreachable_pub, reason = "written for the crate, of which this uses a part")]
mod source {
    pub(crate) mod journal;
}

const TASKS: usize = 1000;
const TASK_BYTES: usize = 180;
const COMMITS: u64 = 3000;
/// A store checkpoints every so many bytes.
const CHECKPOINT_BYTES: u64 = 128 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map_or_else(std::env::temp_dir, PathBuf::from).join("journal-rate");
    let file_mib: u64 = args.next().map_or(Ok(64), |mib| mib.parse())?;
    let apply = Duration::from_nanos(args.next().map_or(Ok(0), |nanos| nanos.parse())?);
    println!("{COMMITS} commits of {TASKS} tasks of {TASK_BYTES} bytes, files of {file_mib} MiB");
    println!(
        "callers  what       tasks/s  commits/s  MB/s  fsyncs/s  per fsync  write µs  fsync µs  rest µs  cpu µs/task"
    );
    for callers in [1, 4, 16, 1, 4, 16] {
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        let (took, cpu, stats) = journal(&dir, file_mib << 20, callers, apply * 1000)?;
        report(callers, "journal", took, cpu, &stats);
        let bare = bare(&dir, &stats)?;
        report(callers, "bare", bare.0, bare.1, &bare.2);
    }
    fs::remove_dir_all(&dir)?;
    Ok(())
}

fn journal(
    dir: &Path,
    file_bytes: u64,
    callers: u64,
    apply: Duration,
) -> Result<(Duration, Duration, JournalStats), Box<dyn Error>> {
    let options = JournalOptions { file_bytes, ..JournalOptions::new(StoreId([1; 16])) };
    let (journal, _) = Journal::open(
        dir,
        options,
        CommitNo(0),
        &mut |_, _| Ok(()),
        move |outcome, answer: mpsc::Sender<CommitNo>| {
            let begun = Instant::now();
            while begun.elapsed() < apply {
                hint::spin_loop();
            }
            answer.send(*outcome.as_ref().expect("durable")).expect("someone waits");
        },
    )?;
    // As in a store that has been running: files are recycled, not made.
    let run = |commits: u64| {
        let left = AtomicU64::new(commits);
        let checkpoint = AtomicU64::new(journal.last().0);
        let taken = |n: u64| n.checked_sub(1);
        thread::scope(|scope| {
            for _ in 0..callers {
                scope.spawn(|| {
                    let payload = Bytes::from(vec![7; TASK_BYTES * TASKS]);
                    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok() {
                        let (item, answer) = mpsc::channel();
                        let bytes = payload.clone();
                        journal.append(Entry { bytes, class: Class::Grow, item }).expect("taken");
                        let commit = answer.recv().expect("durable");
                        let commits = commit.0.saturating_sub(checkpoint.load(Ordering::Relaxed));
                        if commits * (TASK_BYTES * TASKS) as u64 > CHECKPOINT_BYTES {
                            checkpoint.store(commit.0, Ordering::Relaxed);
                            journal.checkpointed(commit);
                        }
                    }
                });
            }
        });
    };
    run(1500);
    let before = journal.stats();
    let (begun, cpu) = (Instant::now(), cpu_time()?);
    run(COMMITS);
    let (took, cpu) = (begun.elapsed(), cpu_time()? - cpu);
    let mut stats = journal.stats();
    stats.commits -= before.commits;
    stats.groups -= before.groups;
    stats.bytes -= before.bytes;
    stats.write_micros_total -= before.write_micros_total;
    stats.fsync_micros_total -= before.fsync_micros_total;
    let made = stats.files_filled - before.files_filled;
    let waits = stats.file_waits - before.file_waits;
    if made + waits > 0 {
        println!("         ({made} files had to be filled, {waits} waits for a file)");
    }
    journal.close()?;
    Ok((took, cpu, stats))
}

fn bare(
    dir: &Path,
    journal: &JournalStats,
) -> Result<(Duration, Duration, JournalStats), Box<dyn Error>> {
    let group = usize::try_from(journal.bytes / journal.groups)?;
    let file_bytes = 256 << 20;
    let file = File::options().write(true).create(true).truncate(true).open(dir.join("bare"))?;
    let zeros = vec![0; 1 << 20];
    for at in 0..file_bytes / zeros.len() {
        file.write_all_at(&zeros, (at * zeros.len()) as u64)?;
    }
    file.sync_all()?;
    let bytes = vec![7; group];
    let mut stats = JournalStats { commits: journal.commits, ..JournalStats::default() };
    let (begun, cpu) = (Instant::now(), cpu_time()?);
    let mut at = 0;
    for _ in 0..journal.groups {
        if at + group > file_bytes {
            at = 0;
        }
        let begun = Instant::now();
        file.write_all_at(&bytes, at as u64)?;
        stats.write_micros_total += u64::try_from(begun.elapsed().as_micros())?;
        let begun = Instant::now();
        file.sync_data()?;
        stats.fsync_micros_total += u64::try_from(begun.elapsed().as_micros())?;
        stats.groups += 1;
        stats.bytes += group as u64;
        at += group;
    }
    Ok((begun.elapsed(), cpu_time()? - cpu, stats))
}

fn report(callers: u64, what: &str, took: Duration, cpu: Duration, stats: &JournalStats) {
    let seconds = took.as_secs_f64();
    let groups = stats.groups as f64;
    let (write, fsync) = (stats.write_micros_total as f64, stats.fsync_micros_total as f64);
    println!(
        "{callers:>7}  {what:<8} {:>9.0} {:>10.0} {:>5.0} {:>9.0} {:>10.1} {:>9.0} {:>9.0} {:>8.0} {:>12.3}",
        stats.commits as f64 * TASKS as f64 / seconds,
        stats.commits as f64 / seconds,
        stats.bytes as f64 / seconds / 1e6,
        groups / seconds,
        stats.commits as f64 / groups,
        write / groups,
        fsync / groups,
        (seconds * 1e6 - write - fsync) / groups,
        cpu.as_secs_f64() * 1e6 / (stats.commits as f64 * TASKS as f64),
    );
}

/// User and system time of this process, in steps of 10 ms.
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().ok_or("no name in /proc/self/stat")?;
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap_or(0)).sum();
    Ok(Duration::from_millis(ticks * 10))
}
