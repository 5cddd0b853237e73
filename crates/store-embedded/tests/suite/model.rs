//! Random calls compared with the memory store, with tiny limits, so that checkpoints, splits and
//! merges happen all the time, and with crashes in between.
//!
//! More seeds: `PUNCTUAL_SEEDS=1000 cargo test -p punctual-store-embedded --test suite model::`.

use punctual_store::conformance::model::{ModelRun, same_as_memory};
use punctual_store::conformance::run;

use super::store_dir::StoreDir;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn the_store_answers_like_the_memory_store_for_many_seeds() {
    let first = number("PUNCTUAL_SEED_FIRST", 100);
    let steps = number("PUNCTUAL_STEPS", 400);
    for seed in first..first + number("PUNCTUAL_SEEDS", 4) {
        let subject = StoreDir::tiny();
        run(same_as_memory(&subject, ModelRun { seed, steps }));
    }
}
