//! Random lives: whatever happens in whatever order, no partition has two owners that may act, and all comes to rest.
//!
//! `LIVES=5000 cargo nextest run -p punctual-cluster --test chances` lives more of them.

mod world;

use std::time::Duration;

use world::{LEASE, World};

const NAMES: [&str; 5] = ["a:1", "b:1", "c:1", "d:1", "e:1"];

/// Numbers from a seed, spread well enough.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn one_of(&mut self, names: &[&'static str]) -> &'static str {
        names[self.below(names.len())]
    }
}

fn live(seed: u64) {
    let mut dice = Dice(seed);
    let mut world = World::new();
    for _ in 0..40 {
        let there = world.names();
        let name = dice.one_of(&NAMES);
        match dice.below(13) {
            0..4 if !there.contains(&name) => world.start(name),
            4 if there.contains(&name) => world.kill(name),
            5 if there.contains(&name) => world.leave(name),
            6 | 7 if there.contains(&name) => world.sleep(name),
            8 => world.store_answers(false),
            9 => world.store_forgets_the_roster(),
            10 => world.cut(name, NAMES[dice.below(NAMES.len())]),
            11 if there.contains(&name) && world.count(name) > 0 => drop(world.break_one(name)),
            12 if there.contains(&name) => world.set_clock_on(name, 100 << dice.below(5)),
            _ => {}
        }
        for name in world.names() {
            if dice.below(3) == 0 {
                world.wake(name);
            }
        }
        if !world.has_store() && dice.below(3) == 0 {
            world.store_answers(true);
        }
        world.run(Duration::from_millis(u64::try_from(dice.below(4_000)).expect("small")));
    }
    world.store_answers(true);
    world.mend();
    for name in world.names() {
        world.wake(name);
    }
    if !world.is_there("f:1") {
        world.start("f:1");
    }
    world.run(LEASE * 6);
    world.assert_settled();
    let starts = world.starts;
    world.run(LEASE * 6);
    world.assert_settled();
    assert_eq!(world.starts, starts, "nothing moves without a cause");
}

#[test]
fn whatever_happens_there_is_one_owner_at_most_and_one_in_the_end() {
    let lives = std::env::var("LIVES").ok().and_then(|lives| lives.parse().ok()).unwrap_or(20);
    for seed in 0..lives {
        let lived = std::panic::catch_unwind(|| live(seed));
        assert!(lived.is_ok(), "seed {seed}");
    }
}
