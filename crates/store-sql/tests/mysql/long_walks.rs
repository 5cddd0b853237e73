//! Long random walks beside the memory store, from other seeds than the conformance suite.
//!
//! ```text
//! PUNCTUAL_SEED=7 cargo test -p punctual-store-sql --test mysql -- --ignored long_walks::
//! ```

use crate::subject::MysqlSubject;
use punctual_store::conformance::model::{ModelRun, same_as_memory};
use punctual_store::conformance::run;

#[test]
#[ignore = "takes a minute"]
fn a_long_walk_matches_memory() {
    run(same_as_memory(&MysqlSubject::new(), ModelRun { seed: 2, steps: 600 }));
}
