//! Random events in random order: no partition ever has two owners that may act, and in the end
//! every partition has one owner.
//!
//! `RUNS=5000 cargo nextest run -p punctual-cluster --test random` runs more seeds.

mod fixture;

use std::time::Duration;

use fixture::{LEASE, TestCluster};

const NAMES: [&str; 5] = ["a:1", "b:1", "c:1", "d:1", "e:1"];

/// A small generator of random numbers.
struct RandomStream(u64);

impl RandomStream {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn one_of(&mut self, names: &[&'static str]) -> &'static str {
        names[self.below(names.len())]
    }
}

fn run_random(seed: u64) {
    let mut random = RandomStream(seed);
    let mut cluster = TestCluster::new();
    for _ in 0..40 {
        let running = cluster.names();
        let name = random.one_of(&NAMES);
        match random.below(13) {
            0..4 if !running.contains(&name) => cluster.start(name),
            4 if running.contains(&name) => cluster.kill(name),
            5 if running.contains(&name) => cluster.leave(name),
            6 | 7 if running.contains(&name) => cluster.pause(name),
            8 => cluster.store_answers(false),
            9 => cluster.forget_members(),
            10 => cluster.disconnect(name, NAMES[random.below(NAMES.len())]),
            11 if running.contains(&name) && cluster.count(name) > 0 => {
                _ = cluster.fail_owner(name);
            }
            12 if running.contains(&name) => {
                cluster.set_clock_forward(name, 100 << random.below(5))
            }
            _ => {}
        }
        for name in cluster.names() {
            if random.below(3) == 0 {
                cluster.resume(name);
            }
        }
        if !cluster.has_store() && random.below(3) == 0 {
            cluster.store_answers(true);
        }
        cluster.run(Duration::from_millis(u64::try_from(random.below(4_000)).expect("small")));
    }
    cluster.store_answers(true);
    cluster.repair();
    for name in cluster.names() {
        cluster.resume(name);
    }
    if !cluster.is_running("f:1") {
        cluster.start("f:1");
    }
    cluster.run(LEASE * 6);
    cluster.assert_settled();
    let starts = cluster.starts;
    cluster.run(LEASE * 6);
    cluster.assert_settled();
    assert_eq!(cluster.starts, starts, "nothing moves without a reason");
}

#[test]
fn every_partition_has_at_most_one_acting_owner_and_one_in_the_end() {
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(20);
    for seed in 0..runs {
        let lived = std::panic::catch_unwind(|| run_random(seed));
        assert!(lived.is_ok(), "seed {seed}");
    }
}
