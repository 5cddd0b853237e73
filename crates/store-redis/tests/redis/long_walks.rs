//! Long random walks beside the memory store, from other seeds than the conformance suite.
//!
//! ```text
//! PUNCTUAL_SEED=7 cargo test -p punctual-store-redis --test redis -- --ignored long_walks::
//! ```

use punctual_store::conformance::model::{Walk, same_as_memory};
use punctual_store::conformance::run;

use crate::subject::RedisSubject;

#[test]
#[ignore = "takes a minute"]
fn a_long_walk_on_a_single_server_matches_memory() {
    run(same_as_memory(&RedisSubject::single(), Walk { seed: 2, steps: 600 }));
}

#[test]
#[ignore = "takes a minute"]
fn a_long_walk_on_a_cluster_matches_memory() {
    run(same_as_memory(&RedisSubject::cluster(), Walk { seed: 3, steps: 600 }));
}
