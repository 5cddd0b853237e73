//! Random lives: which seeds are lived, and what is said of one that breaks a promise.
//!
//! `PUNCTUAL_SEED=n` lives one, `PUNCTUAL_SEEDS=n` as many. Seeds that broke a promise once are lived first.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Moves;

/// A life from its seed, in which the partition may move. Out: how often it has.
type Live = fn(u64, Option<Moves>) -> u32;

/// Lives without moves.
pub(crate) fn live(kept: &[u64], count_default: u64, life: Live) {
    for seed in seeds(kept, count_default) {
        let lived = catch_unwind(AssertUnwindSafe(|| life(seed, None)));
        assert!(lived.is_ok(), "PUNCTUAL_SEED={seed} breaks a promise; see above");
    }
}

/// Hand-overs at any point, in any weather; in half of the lives owners never crash, and then nothing is sent twice.
pub(crate) fn live_moving(kept: &[u64], count_default: u64, life: Live) {
    let (mut moves, mut lives) = (0, 0);
    for seed in seeds(kept, count_default) {
        let lived = catch_unwind(AssertUnwindSafe(|| life(seed, Some(Moves::new(seed)))));
        let Ok(moved) = lived else {
            panic!("PUNCTUAL_SEED={seed} breaks a promise when it moves; see above");
        };
        moves += moved;
        lives += 1;
    }
    assert!(moves >= lives, "{moves} moves in {lives} lives");
}

fn seeds(kept: &[u64], count_default: u64) -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let further = match number("PUNCTUAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("PUNCTUAL_SEEDS").unwrap_or(count_default),
    };
    kept.iter().copied().chain(further)
}
