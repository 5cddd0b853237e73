//! Faults of a cluster: brokers, Redis and the links between them fail under load, with receivers and workers as witnesses.
//!
//! Each round is one fault on the same cluster, which then heals, comes to rest and is judged. Longer: `tools/cluster`.
//! What was seen stands in `docs/faults.md`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]
#![allow(clippy::print_stdout, reason = "a long run says what it did")]

#[path = "faults/again.rs"]
mod again;
#[path = "cluster/fault.rs"]
mod fault;
mod field;
#[path = "cluster/judge.rs"]
mod judge;
#[path = "cluster/lasting.rs"]
mod lasting;
#[path = "cluster/load.rs"]
mod load;
#[path = "cluster/machine.rs"]
mod machine;
#[path = "cluster/member.rs"]
mod member;
#[path = "cluster/names.rs"]
mod names;
#[path = "cluster/net.rs"]
mod net;
#[path = "cluster/redis.rs"]
mod redis;
#[path = "cluster/round.rs"]
mod round;
#[path = "cluster/stage.rs"]
mod stage;
#[path = "cluster/trial.rs"]
mod trial;
#[path = "faults/witness.rs"]
mod witness;
#[path = "faults/workers.rs"]
mod workers;

use round::{KINDS, Run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Rounds in `./test`: half of the kinds.
const ROUNDS: u64 = KINDS.len().div_ceil(2) as u64;

#[test]
fn a_cluster_under_faults_loses_nothing_and_doubles_nothing() {
    let rounds = number("PUNCTUAL_CLUSTER_ROUNDS").unwrap_or(ROUNDS);
    // An odd seed begins with the other half.
    let seed = number("PUNCTUAL_CLUSTER_SEED").unwrap_or(0);
    println!("seed {seed}");
    let only = std::env::var("PUNCTUAL_CLUSTER_KIND").ok();
    let mut run = Run::start(seed);
    for number in 0..rounds {
        let turn = usize::try_from(seed * ROUNDS + number).unwrap();
        let kind = only.as_ref().map_or_else(
            || KINDS[turn % KINDS.len()],
            |name| KINDS.into_iter().find(|kind| format!("{kind:?}") == *name).unwrap(),
        );
        run.round(number, kind);
    }
    run.end();
}
