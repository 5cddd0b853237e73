//! Faults of a cluster: brokers, their store and the links between them fail under load, while
//! receivers and workers record what they get.
//!
//! Each round injects one fault into the same cluster, waits until it has recovered, and checks the
//! records. Longer: `tools/cluster`. The results are in `docs/lab/faults.md` and `docs/lab/sql.md`.

mod checks;
mod fault;
pub(crate) mod faulted_load;
pub(crate) mod load;
mod recurring;
mod rounds;
mod store;

use punctual_test_support::MariadbServer;
use punctual_test_support::postgres::PostgresPair;
use punctual_test_support::redis::RedisPair;
use rounds::FaultRun;
use store::FaultyStore;

pub(crate) fn number_of(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_cluster_on_redis_under_faults_loses_and_doubles_nothing() {
    // Half of the kinds.
    loses_and_doubles_nothing::<RedisPair>(9);
}

/// In `./test`: the database killed, a broker suspended, a failover, a cut link, and a database
/// that hangs.
#[test]
fn a_cluster_on_postgres_under_faults_loses_and_doubles_nothing() {
    loses_and_doubles_nothing::<PostgresPair>(5);
}

/// In `./test`: the database killed, a broker suspended, a cut link, and a database that hangs.
#[test]
fn a_cluster_on_mariadb_under_faults_loses_and_doubles_nothing() {
    loses_and_doubles_nothing::<MariadbServer>(4);
}

/// Runs rounds with the kinds of faults in turn.
fn loses_and_doubles_nothing<S: FaultyStore>(rounds_in_tests: u64) {
    let rounds = number_of("PUNCTUAL_CLUSTER_ROUNDS").unwrap_or(rounds_in_tests);
    // An odd seed begins with the other kinds.
    let seed = number_of("PUNCTUAL_CLUSTER_SEED").unwrap_or(0);
    println!("{}, seed {seed}", S::NAME);
    let only = std::env::var("PUNCTUAL_CLUSTER_KIND").ok();
    let mut run = FaultRun::<S>::start(seed);
    for number in 0..rounds {
        let turn = usize::try_from(seed * rounds_in_tests + number).unwrap();
        let kind = only.as_ref().map_or_else(
            || S::KINDS[turn % S::KINDS.len()],
            |name| *S::KINDS.iter().find(|kind| format!("{kind:?}") == *name).unwrap(),
        );
        run.round(number, kind);
    }
    run.end();
}
