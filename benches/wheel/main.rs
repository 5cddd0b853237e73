//! The wheel beside other timers: one table, made in one run.
//!
//! In: `--timers N` (may be repeated), `--rounds N`. Out: the table and the ratios, on stdout.
//! Invariant: every contender does the same work on the same times, in a process of its own, and
//! what it gave back is checked: everything that was not cancelled, once, in order, never early.
//! Next door: the contenders (`contenders`), the work and its check (`work`), bytes (`memory`).
//!
//! `cargo run --release -p punctual-benches --bin bench-wheel`

mod contenders;
mod memory;
mod work;

use std::process::{Command, ExitCode};

use contenders::CONTENDERS;
use work::Figures;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const ROUNDS: usize = 3;
/// Has malloc keep what is freed, so that the second of two runs finds its memory in place. The
/// first touch of a page costs 3 to 10 µs on a virtual machine, which is more than any contender
/// does with it, and differs from run to run.
const KEEP_MEMORY: &str = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1000000000000";

const OURS: &str = "punctual-wheel";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut sizes, mut rounds) = (Vec::new(), ROUNDS);
    while let Some(arg) = args.next() {
        let value = args.next();
        let number = value.as_deref().map(|value| value.replace('_', "").parse::<usize>());
        match (arg.as_str(), number) {
            ("--timers", Some(Ok(timers))) if timers >= 2 => sizes.push(timers),
            ("--rounds", Some(Ok(number))) if number >= 1 => rounds = number,
            // How the bench calls itself: one contender, one measurement, one line.
            ("--measure", _) => {
                let timers = sizes.first().copied().unwrap_or(1_000_000);
                return measure_one(value.as_deref().unwrap_or_default(), timers);
            }
            _ => {
                eprintln!("usage: bench-wheel [--timers N]... [--rounds N]");
                return ExitCode::FAILURE;
            }
        }
    }
    if sizes.is_empty() {
        sizes = vec![1_000_000, 10_000_000];
    }
    let mut ours = Vec::new();
    for timers in sizes {
        match table(timers, rounds) {
            Ok(figures) => ours.push((timers, figures)),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    for pair in ours.windows(2) {
        print_growth(pair[0], pair[1]);
    }
    ExitCode::SUCCESS
}

fn measure_one(name: &str, timers: usize) -> ExitCode {
    let Some((_, measure)) = CONTENDERS.iter().find(|(contender, _)| *contender == name) else {
        eprintln!("no contender {name}");
        return ExitCode::FAILURE;
    };
    let work = work::Work::new(timers);
    // Once for the memory, which malloc keeps, and once for the figures.
    measure(&work);
    println!("{}", measure(&work).to_line());
    ExitCode::SUCCESS
}

/// Prints the table for one size and gives our own row.
fn table(timers: usize, rounds: usize) -> Result<Figures, String> {
    println!("\n{timers} timers over an hour, half of them cancelled; median of {rounds}\n");
    println!(
        "| contender | insert ns | cancel ns | expire ns | sum ns | bytes each | at its peak |\n\
         |---|---:|---:|---:|---:|---:|---:|"
    );
    // Rounds outside, contenders inside: a neighbour that is busy for a while slows down all alike.
    let mut runs = vec![Vec::new(); CONTENDERS.len()];
    for _ in 0..rounds {
        for ((name, _), runs) in CONTENDERS.iter().zip(&mut runs) {
            runs.push(in_own_process(name, timers)?);
        }
    }
    let mut rows = Vec::new();
    for ((name, _), runs) in CONTENDERS.iter().zip(&runs) {
        let figures = Figures::median(runs);
        println!("| {name} {figures}");
        rows.push((*name, figures));
    }
    let ours = rows.iter().find(|(name, _)| *name == OURS).map(|(_, figures)| *figures);
    let ours = ours.ok_or("our own row is missing")?;
    let best = rows
        .iter()
        .filter(|(name, _)| *name != OURS)
        .filter_map(|(name, figures)| Some((figures.sum()?, *name)))
        .min_by(|one, other| one.0.total_cmp(&other.0));
    if let (Some(sum), Some((best_sum, best_name))) = (ours.sum(), best) {
        println!(
            "\ninsert + cancel + expire: {sum:.0} ns, {:.1} times faster than {best_name} \
             ({best_sum:.0} ns), the best other that can do all three; wanted: 3\n\
             memory: {:.1} bytes a timer; wanted: at most 32",
            best_sum / sum,
            ours.bytes_full,
        );
    }
    Ok(ours)
}

fn in_own_process(name: &str, timers: usize) -> Result<Figures, String> {
    let bench = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(bench)
        .env("GLIBC_TUNABLES", KEEP_MEMORY)
        .args(["--timers", &timers.to_string(), "--measure", name])
        .output()
        .map_err(|error| error.to_string())?;
    let line = String::from_utf8_lossy(&output.stdout);
    Figures::from_line(&line)
        .ok_or_else(|| format!("{name} failed: {line}{}", String::from_utf8_lossy(&output.stderr)))
}

fn print_growth((few, before): (usize, Figures), (many, after): (usize, Figures)) {
    let ratio = |before: Option<f64>, after: Option<f64>| match (before, after) {
        (Some(before), Some(after)) => format!("{:.2}", after / before),
        _ => "–".to_owned(),
    };
    println!(
        "\nours, from {few} to {many} timers: insert × {}, cancel × {}, expire × {}, sum × {}; \
         wanted: at most 1.5",
        ratio(Some(before.insert_ns), Some(after.insert_ns)),
        ratio(before.cancel_ns, after.cancel_ns),
        ratio(Some(before.expire_ns), Some(after.expire_ns)),
        ratio(before.sum(), after.sum()),
    );
}
