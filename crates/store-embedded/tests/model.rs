//! Random walks beside the memory store, with tiny budgets, so that flushes, splits, merges and checkpoints happen all the time,
//! and crashes strike within them. More seeds: `PUNCTUAL_SEEDS=1000 cargo test -p punctual-store-embedded --test model`.

mod subject;

use punctual_store::conformance::model::{ModelRun, same_as_memory};
use punctual_store::conformance::run;

use subject::Dir;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn the_store_answers_like_the_memory_store_over_many_seeds() {
    let first = number("PUNCTUAL_SEED_FIRST", 100);
    let steps = number("PUNCTUAL_STEPS", 400);
    for seed in first..first + number("PUNCTUAL_SEEDS", 4) {
        let subject = Dir::tiny();
        run(same_as_memory(&subject, ModelRun { seed, steps }));
    }
}
