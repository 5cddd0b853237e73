//! A process that writes to one directory is killed (SIGKILL) again and again, and loses nothing.
//!
//! In each cycle a new process opens the directory that the last one left, prints everything that
//! it can read, and writes until it is killed, at a moment that may be in the middle of opening, of
//! a commit, of a checkpoint or of closing. A model in this process, the memory store, applies what
//! was acknowledged. The first difference fails the test, with the seed and the directory to
//! reproduce it.
//!
//! Longer: `tools/crash`, or
//! `PUNCTUAL_CRASH_CYCLES=1000 cargo test -r -p punctual-store-embedded --test suite crash::`.
//! Data that the kernel had not written is not lost here (`docs/lab/faults.md` says what killing a
//! process does not show).

mod cycles;
mod plan;
mod view;
mod writer;

use cycles::{CrashReport, Cycles};
use writer::Budgets;

/// In the normal run of all tests.
const CYCLES: u64 = 15;

#[test]
fn no_acknowledged_batch_is_lost_with_tiny_limits() {
    let report = run(Budgets::Tiny, cycles(CYCLES));
    assert!(report.commits > 0, "no cycle ran long enough to write: {report:?}");
}

#[test]
fn no_acknowledged_batch_is_lost_with_the_limits_of_a_broker() {
    let report = run(Budgets::Usual, (cycles(CYCLES) / 5).max(1));
    assert!(report.commits > 0, "no cycle ran long enough to write: {report:?}");
}

/// The process that is killed. It is this test binary, started by the tests above with its
/// configuration in the environment; without that it does nothing.
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

fn run(budgets: Budgets, cycles: u64) -> CrashReport {
    let seed = number("PUNCTUAL_CRASH_SEED").unwrap_or(1);
    let report = Cycles::new(budgets, seed).run(cycles);
    println!("{budgets:?}, seed {seed}: {report}");
    report
}
