//! Long walks with the memory store, from other seeds than the suite's: a command of its own.
//!
//! ```text
//! PUNCTUAL_SEED=7 cargo test -p punctual-store-redis --test model -- --ignored
//! ```

use crate::subject::RedisSubject;
use punctual_store::conformance::model::{Walk, same_as_memory};
use punctual_store::conformance::run;

#[test]
#[ignore = "takes a minute"]
fn a_long_walk_on_a_single_server() {
    run(same_as_memory(&RedisSubject::single(), Walk { seed: 2, steps: 600 }));
}

#[test]
#[ignore = "takes a minute"]
fn a_long_walk_on_a_cluster() {
    run(same_as_memory(&RedisSubject::cluster(), Walk { seed: 3, steps: 600 }));
}
