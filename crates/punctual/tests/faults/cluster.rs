//! Faults of a cluster: brokers, Redis and the links between them fail under load, while receivers
//! and workers record what they get.
//!
//! Each round injects one fault into the same cluster, waits until it has recovered, and checks the
//! records. Longer: `tools/cluster`. The results are in `docs/lab/faults.md`.

mod checks;
mod fault;
pub(crate) mod faulted_load;
pub(crate) mod load;
mod recurring;
mod rounds;

use rounds::{FaultRun, KINDS};

pub(crate) fn number_of(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Rounds in `./test`: half of the kinds.
const ROUNDS: u64 = KINDS.len().div_ceil(2) as u64;

#[test]
fn a_cluster_under_faults_loses_and_doubles_nothing() {
    let rounds = number_of("PUNCTUAL_CLUSTER_ROUNDS").unwrap_or(ROUNDS);
    // An odd seed begins with the other half of the kinds.
    let seed = number_of("PUNCTUAL_CLUSTER_SEED").unwrap_or(0);
    println!("seed {seed}");
    let only = std::env::var("PUNCTUAL_CLUSTER_KIND").ok();
    let mut run = FaultRun::start(seed);
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
