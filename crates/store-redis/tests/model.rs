//! Long walks with the memory store, from other seeds than the suite's: a command of its own.
//!
//! ```text
//! PUNCTUAL_SEED=7 cargo test -p punctual-store-redis --test model -- --ignored
//! ```

mod servers;

use punctual_store::conformance::model::{ModelRun, same_as_memory};
use punctual_store::conformance::run;
use servers::subject::Named;

#[test]
#[ignore = "takes a minute"]
fn a_long_walk_on_a_single_server() {
    run(same_as_memory(&Named::single(), ModelRun { seed: 2, steps: 600 }));
}

#[test]
#[ignore = "takes a minute"]
fn a_long_walk_on_a_cluster() {
    run(same_as_memory(&Named::cluster(), ModelRun { seed: 3, steps: 600 }));
}
