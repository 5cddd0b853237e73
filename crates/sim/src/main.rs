//! `tools/sim`: runs one seed and prints its trace if it fails, or runs many seeds.
//!
//! ```text
//! sim SEED                         one run; prints the trace if it breaks a promise
//! sim --seeds COUNT [--from SEED]  many runs, on all cores; stops at the first broken promise
//! ```

#![allow(clippy::print_stdout, reason = "this is a command-line tool")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use punctual_sim::{SimFigures, Variant, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |argument: &str| argument.parse::<u64>().ok();
    match arguments.as_slice() {
        ["--seeds", count] => number(count).map_or_else(usage, |count| many(1, count)),
        ["--seeds", count, "--from", first] => match (number(count), number(first)) {
            (Some(count), Some(first)) => many(first, count),
            _ => usage(),
        },
        [seed] => number(seed).map_or_else(usage, one),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    println!("sim SEED | sim --seeds COUNT [--from SEED]");
    ExitCode::from(2)
}

fn one(seed: u64) -> ExitCode {
    match run(seed, Variant::Sound) {
        Ok(figures) => {
            println!("seed {seed} keeps all promises: {figures:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(first: u64, count: u64) -> ExitCode {
    // A panic is reported as a broken promise, so the hook prints nothing.
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicU64::new(first);
    let failed = AtomicBool::new(false);
    let all = Mutex::new((0u64, SimFigures::default()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first.saturating_add(count) {
                        return;
                    }
                    match run(seed, Variant::Sound) {
                        Ok(figures) => {
                            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                            all.0 += 1;
                            all.1 = all.1.and(figures);
                        }
                        Err(failure) => {
                            if !failed.swap(true, Ordering::Relaxed) {
                                println!("{failure}");
                            }
                        }
                    }
                }
            });
        }
    });
    let (runs, figures) = *all.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{runs} runs kept all promises; in total {figures:?}");
    if failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
