//! Compares the wheel with other timer queues: one table, made in one run.
//!
//! Every contender does the same work on the same times, in its own process, and its result is
//! checked: everything that was not cancelled expires once, in order, never early. `contenders` has
//! the timer queues, `work` the workload and its check, `memory` counts bytes.
//!
//! `cargo run --release -p punctual-bench-compare --bin bench-wheel [-- --timers N --rounds N]`

mod contenders;
mod memory;
mod work;

use std::process::{Command, ExitCode};

use contenders::CONTENDERS;
use work::WheelFigures;

#[global_allocator]
static ALLOCATOR: memory::CountingAllocator = memory::CountingAllocator;

const ROUNDS: usize = 3;
/// Makes malloc keep freed memory, so that the second of two runs does not page it in again. The
/// first access to a page costs 3 to 10 µs on a virtual machine, which is more than any contender
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
            // The bench starts itself with this flag: one contender, one measurement, one line.
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
        eprintln!("there is no contender {name}");
        return ExitCode::FAILURE;
    };
    let work = work::TimerWorkload::new(timers);
    // The first run pages in the memory, the second is measured.
    measure(&work);
    println!("{}", measure(&work).to_line());
    ExitCode::SUCCESS
}

/// Prints the table for one size, and returns the row of the wheel.
fn table(timers: usize, rounds: usize) -> Result<WheelFigures, String> {
    println!("\n{timers} timers over an hour, half of them cancelled; median of {rounds}\n");
    println!(
        "| contender | insert ns | cancel ns | expire ns | sum ns | bytes each | at its peak |\n\
         |---|---:|---:|---:|---:|---:|---:|"
    );
    // Each round runs all contenders, so that a busy period of the machine slows down all of them.
    let mut runs = vec![Vec::new(); CONTENDERS.len()];
    for _ in 0..rounds {
        for ((name, _), runs) in CONTENDERS.iter().zip(&mut runs) {
            runs.push(in_own_process(name, timers)?);
        }
    }
    let mut rows = Vec::new();
    for ((name, _), runs) in CONTENDERS.iter().zip(&runs) {
        let figures = WheelFigures::median(runs);
        println!("| {name} {figures}");
        rows.push((*name, figures));
    }
    let ours = rows.iter().find(|(name, _)| *name == OURS).map(|(_, figures)| *figures);
    let ours = ours.ok_or("the row of the wheel is missing")?;
    let best = rows
        .iter()
        .filter(|(name, _)| *name != OURS)
        .filter_map(|(name, figures)| Some((figures.sum()?, *name)))
        .min_by(|one, other| one.0.total_cmp(&other.0));
    if let (Some(sum), Some((best_sum, best_name))) = (ours.sum(), best) {
        println!(
            "\ninsert + cancel + expire: {sum:.0} ns, {:.1} times faster than {best_name} \
             ({best_sum:.0} ns), the best other that has all three; target: 3\n\
             memory: {:.1} bytes per timer; target: at most 32",
            best_sum / sum,
            ours.bytes_full,
        );
    }
    Ok(ours)
}

fn in_own_process(name: &str, timers: usize) -> Result<WheelFigures, String> {
    let bench = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(bench)
        .env("GLIBC_TUNABLES", KEEP_MEMORY)
        .args(["--timers", &timers.to_string(), "--measure", name])
        .output()
        .map_err(|error| error.to_string())?;
    let line = String::from_utf8_lossy(&output.stdout);
    WheelFigures::from_line(&line)
        .ok_or_else(|| format!("{name} failed: {line}{}", String::from_utf8_lossy(&output.stderr)))
}

fn print_growth((few, before): (usize, WheelFigures), (many, after): (usize, WheelFigures)) {
    let ratio = |before: Option<f64>, after: Option<f64>| match (before, after) {
        (Some(before), Some(after)) => format!("{:.2}", after / before),
        _ => "–".to_owned(),
    };
    println!(
        "\npunctual-wheel, from {few} to {many} timers: \
         insert × {}, cancel × {}, expire × {}, sum × {}; \
         target: at most 1.5",
        ratio(Some(before.insert_ns), Some(after.insert_ns)),
        ratio(before.cancel_ns, after.cancel_ns),
        ratio(Some(before.expire_ns), Some(after.expire_ns)),
        ratio(before.sum(), after.sum()),
    );
}
