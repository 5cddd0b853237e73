//! A simulation of a cluster: brokers, leases, a store and clocks, in which one seed decides
//! everything.
//!
//! The decisions are the real ones: [`Member`](punctual_cluster::Member),
//! [`PartitionMoves`](punctual_cluster::PartitionMoves), [`Owner`](punctual_engine::Owner) and the
//! memory store are plain values, as in production. What `server` does with threads, connections
//! and timers, a small shell does here with events that the seed delays, reorders and loses. A run
//! ends with counts of what happened, or with the promise that was broken and the trace that led
//! there.
//!
//! `docs/lab/sim.md` describes what is simulated, what is checked, and what is not.

mod clock;
mod random;

mod event_queue;
mod store;

mod broker;
mod callers;
mod faults;
mod waits;

mod forward;
mod record;
mod shell;
mod simulation;

mod checker;
mod figures;
mod trace;
mod variant;

use std::panic::{AssertUnwindSafe, catch_unwind};

use simulation::Simulation;
use trace::RunTrace;

pub use checker::BrokenPromise;
pub use figures::SimFigures;
pub use variant::Variant;

/// A run in which a promise was broken.
#[derive(Debug, Clone)]
pub struct SimFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The promise that was broken first.
    pub broken: BrokenPromise,
    /// The faults and the last steps of the run.
    pub trace: Vec<String>,
}

impl std::fmt::Display for SimFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        let BrokenPromise { promise, observed } = &self.broken;
        writeln!(f, "broken: {promise}: {observed}")?;
        write!(f, "to repeat: tools/sim {}", self.seed)
    }
}

/// Runs one seed. A run that fails is repeated to record its trace.
pub fn run(seed: u64, variant: Variant) -> Result<SimFigures, Box<SimFailure>> {
    let broken = match once(seed, variant, RunTrace::default()) {
        Ok(figures) => return Ok(figures),
        Err(broken) => broken,
    };
    let trace = RunTrace::recording();
    let again = once(seed, variant, trace.clone());
    let broken = match again {
        Err(again) if again == broken => broken,
        // Something other than the seed has an influence, so no seed can be trusted.
        _ => BrokenPromise {
            promise: "a seed decides everything",
            observed: format!("{broken:?}, then {again:?}"),
        },
    };
    Err(Box::new(SimFailure { seed, broken, trace: trace.lines() }))
}

/// Runs one seed without recording a trace.
pub fn check(seed: u64, variant: Variant) -> Result<SimFigures, BrokenPromise> {
    once(seed, variant, RunTrace::default())
}

fn once(seed: u64, variant: Variant, trace: RunTrace) -> Result<SimFigures, BrokenPromise> {
    let run = AssertUnwindSafe(|| Simulation::new(seed, variant, trace).run());
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(BrokenPromise { promise: "no panic", observed: text.unwrap_or_default() })
    })
}
