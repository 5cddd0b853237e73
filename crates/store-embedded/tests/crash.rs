//! Kill -9, again and again, of a real process that writes to one directory.
//!
//! In: a number of cycles and a seed. Out: nothing, or the first thing that was lost, halved or came back, with what
//! finds it again. Each cycle a new process opens the directory that the last one left, says all that it
//! sees, and writes until it is killed, at a moment that may be in the middle of opening, of a commit, of a
//! checkpoint or of closing. A model in this process, the memory store, takes in what was acknowledged.
//!
//! Longer: `tools/crash`, or `PUNCTUAL_CRASH_CYCLES=1000 cargo test --release -p punctual-store-embedded --test crash`.
//! Not here: losing what the kernel had not written (`docs/faults.md` says what a killed process does not show).

#![allow(clippy::panic, reason = "a test that is surprised should stop")]
#![allow(clippy::print_stdout, reason = "a long run says what it did")]

#[path = "crash/cycles.rs"]
mod cycles;
#[path = "crash/plan.rs"]
mod plan;
#[path = "crash/sight.rs"]
mod sight;
#[path = "crash/writer.rs"]
mod writer;

use cycles::{Cycles, Found};
use writer::Budgets;

/// In the usual run of all tests.
const CYCLES: u64 = 15;

#[test]
fn nothing_acknowledged_is_lost_when_a_busy_writer_is_killed_again_and_again() {
    let found = run(Budgets::Tiny, cycles(CYCLES));
    assert!(found.commits > 0, "no cycle lived long enough to write: {found:?}");
}

#[test]
fn nothing_acknowledged_is_lost_with_the_budgets_of_a_real_broker() {
    let found = run(Budgets::Usual, (cycles(CYCLES) / 5).max(1));
    assert!(found.commits > 0, "no cycle lived long enough to write: {found:?}");
}

/// The process that is killed. It is this same program, started by the tests above with what it needs in its
/// environment; without that it has nothing to do.
#[test]
#[ignore = "the process that the other tests start and kill"]
fn writer_process() {
    writer::run_from_environment();
}

fn cycles(usual: u64) -> u64 {
    number("PUNCTUAL_CRASH_CYCLES").unwrap_or(usual)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

fn run(budgets: Budgets, cycles: u64) -> Found {
    let seed = number("PUNCTUAL_CRASH_SEED").unwrap_or(1);
    let found = Cycles::new(budgets, seed).run(cycles);
    println!("{budgets:?}, seed {seed}: {found}");
    found
}
