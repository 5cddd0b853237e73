//! The promises hold in five hundred runs, and in all that once broke one. `tools/sim --seeds
//! 100000` runs more.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use punctual_sim::{SimFigures, Variant, run};

/// Each of these broke a promise once. 333 and 387: a failover that an owner with nothing to write
/// did not notice. 557, 4822, 5994 and 7524: decisions based on reads between a failover and its
/// repair. 11193: a store that lost the same batches a second time. 105455: an edit to at-most-once
/// of a fire that was already sent. 508883: a successor that had just left. 5881, like 227 of the
/// five hundred, would break one: a batch that was sent without an answer arrives after the repair.
/// 523, 603 and 1016 broke one before connections could fail: a claim that came back unsent, an
/// attempt that was handed over after a wait, a claimed fire that waited during a hand-over. 324 of
/// the five hundred would break the second, and 21 the third. 929 and 8059: tasks whose cancel was
/// lost, read before the failover was noticed. 3654: a cancel answered for an earlier task. 1265: a
/// batch that arrived right behind the repair, decided without what was lost.
/// The others showed where the simulation promised more than the product does (12014 and 40564:
/// clocks that are wrong together; 5816: a batch that comes back without its owner's knowledge),
/// did less (3417, 111395, 275655), took a late answer for a newer one (34021), or did not wait for
/// a broker that had just started (11064).
const SEEDS_KEPT: [u64; 37] = [
    333, 387, 557, 4822, 5994, 7524, 11_193, 105_455, 508_883, 5881, 12_014, 40_564, 5816, 3417,
    111_395, 275_655, 34_021, 11_064, 28, 67, 72, 147, 357, 364, 422, 450, 462, 468, 476, 480, 523,
    603, 1016, 929, 8059, 3654, 1265,
];
const SEEDS: u64 = 500;

#[test]
fn the_promises_hold_in_five_hundred_runs() {
    for seed in SEEDS_KEPT {
        if let Err(failure) = run(seed, Variant::Sound) {
            panic!("{failure}");
        }
    }
    let next = AtomicU64::new(1);
    let all = Mutex::new(SimFigures::default());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let seed @ ..=SEEDS = next.fetch_add(1, Ordering::Relaxed) {
                    match run(seed, Variant::Sound) {
                        Ok(figures) => {
                            let mut all = all.lock().unwrap();
                            *all = all.and(figures);
                        }
                        Err(failure) => panic!("{failure}"),
                    }
                }
            });
        }
    });
    // Runs in which nothing happens prove nothing.
    let all = all.into_inner().unwrap();
    let floor = [
        ("faults", all.faults, 5),
        ("orders", all.orders, 30),
        ("received", all.received, 30),
        ("owners", all.owners, 5),
        ("hand-overs", all.hand_overs, 2),
    ];
    for (what, count, least) in floor {
        assert!(count >= least * SEEDS, "{what}: {count} in {SEEDS} runs");
    }
    assert!(all.callbacks > 5 * SEEDS, "{all:?}");
    assert!(all.waited > 2 * SEEDS && all.recalled > SEEDS && all.lease_over > 20, "{all:?}");
    assert!(all.inherited > 100 && all.lost_batches > 100 && all.late_batches > 100, "{all:?}");
}

#[test]
fn a_seed_decides_everything() {
    for seed in 1..=20 {
        assert_eq!(run(seed, Variant::Sound).unwrap(), run(seed, Variant::Sound).unwrap());
    }
}
