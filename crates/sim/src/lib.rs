//! A simulation: brokers, leases, a store and clocks, in which one seed decides everything.
//!
//! In: a seed. Out: what happened, or the promise that was broken and the story that led there. The decisions are the real ones:
//! [`Member`](punctual_cluster::Member) of `cluster` and [`Owner`](punctual_engine::Owner) of `engine` are plain values, and so is the memory store. What
//! `server` does with threads, connections and time, a small shell does here with letters that a seed delays, reorders and loses.
//!
//! `docs/sim.md` says what is simulated, what is checked, and what is not.

mod clock;
mod dice;

mod mail;
mod store;

mod broker;
mod callers;
mod faults;

mod forward;
mod shell;
mod world;

mod story;
mod variant;
mod witness;

use std::panic::{AssertUnwindSafe, catch_unwind};

use story::Story;
use world::World;

pub use variant::Variant;
pub use witness::Broken;
pub use world::Figures;

/// A life in which a promise was broken.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Which life.
    pub seed: u64,
    /// What was broken.
    pub broken: Broken,
    /// Its last steps.
    pub story: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in &self.story {
            writeln!(f, "{line}")?;
        }
        let Broken { promise, seen } = &self.broken;
        writeln!(f, "broken: {promise}: {seen}")?;
        write!(f, "again: tools/sim {}", self.seed)
    }
}

/// Lives one life. A failing one is lived again to be told.
pub fn live(seed: u64, variant: Variant) -> Result<Figures, Box<Failure>> {
    let broken = match once(seed, variant, Story::default()) {
        Ok(figures) => return Ok(figures),
        Err(broken) => broken,
    };
    let story = Story::told();
    let again = once(seed, variant, story.clone());
    let broken = match again {
        Err(again) if again == broken => broken,
        // Something besides the seed decides: no seed means anything then.
        _ => Broken {
            promise: "a seed decides everything",
            seen: format!("{broken:?}, then {again:?}"),
        },
    };
    Err(Box::new(Failure { seed, broken, story: story.lines() }))
}

/// Only what is broken, without the story.
pub fn look(seed: u64, variant: Variant) -> Result<Figures, Broken> {
    once(seed, variant, Story::default())
}

fn once(seed: u64, variant: Variant, story: Story) -> Result<Figures, Broken> {
    let life = AssertUnwindSafe(|| World::new(seed, variant, story).live());
    catch_unwind(life).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Broken { promise: "no panic", seen: text.unwrap_or_default() })
    })
}
