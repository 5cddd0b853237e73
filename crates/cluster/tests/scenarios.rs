//! Clusters that start, crash, leave, pause and lose their store, with simulated time.

mod fixture;

use std::time::Duration;

use fixture::{LEASE, PARTITIONS, TestCluster};

const MINUTE: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn other_than(leader: &str) -> &'static str {
    if leader == "a:1" { "b:1" } else { "a:1" }
}

#[test]
fn three_brokers_that_start_together_share_evenly_and_nothing_moves_afterwards() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    assert_eq!(cluster.starts, usize::from(PARTITIONS), "no partition was moved");
    cluster.run(MINUTE * 5);
    cluster.assert_settled();
    assert_eq!(cluster.starts, usize::from(PARTITIONS));
}

#[test]
fn a_single_broker_owns_all_partitions_soon() {
    let mut cluster = TestCluster::new();
    cluster.start("a:1");
    let took = cluster.run_until(LEASE, |cluster| cluster.vacant() == 0);
    assert!(took < ms(1_500), "took {took:?}");
}

#[test]
fn a_broker_that_restarts_at_once_owns_the_same_partitions() {
    let mut cluster = TestCluster::of(&["a:1", "b:1"]);
    for name in ["a:1", "b:1"] {
        cluster.kill(name);
        cluster.start(name);
        let took = cluster.run_until(LEASE, |cluster| cluster.vacant() == 0);
        assert!(took < ms(500), "took {took:?}");
    }
    cluster.run(MINUTE);
    cluster.assert_settled();
    assert_eq!(cluster.starts, 2 * usize::from(PARTITIONS), "nothing else moved");
}

#[test]
fn partitions_of_a_killed_broker_are_taken_over_when_its_leases_end() {
    let names = ["a:1", "b:1", "c:1"];
    // At different moments between two renewals.
    for (leads, moment) in
        [true, false].into_iter().flat_map(|leads| (0..8).map(move |n| (leads, n * 211)))
    {
        let mut cluster = TestCluster::of(&names);
        cluster.run(ms(moment));
        let leader = cluster.leader();
        let victim = if leads { leader } else { other_than(leader) };
        let had = cluster.count(victim);
        let starts = cluster.starts;
        cluster.kill(victim);
        let took = cluster.run_until(LEASE * 2, |cluster| cluster.vacant() == 0);
        assert!((LEASE / 2..LEASE + ms(500)).contains(&took), "leader {leads}: took {took:?}");
        cluster.run(MINUTE);
        cluster.assert_settled();
        assert_eq!(cluster.starts, starts + had, "nothing else moved");
    }
}

#[test]
fn a_broker_paused_beyond_its_lease_loses_its_partitions_and_gets_its_share_again() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    for name in ["a:1", "b:1", "c:1"] {
        cluster.pause(name);
        cluster.run(LEASE * 3);
        assert_eq!(cluster.count(name), 0, "its owners do not act");
        assert_eq!(cluster.vacant(), 0, "the others own all");
        cluster.resume(name);
        cluster.run(LEASE * 2);
        cluster.assert_settled();
    }
}

#[test]
fn a_short_pause_moves_nothing() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    let starts = cluster.starts;
    for name in ["a:1", "b:1", "c:1"] {
        cluster.pause(name);
        cluster.run(LEASE * 2 / 5);
        cluster.resume(name);
        cluster.run(LEASE * 2);
        cluster.assert_settled();
    }
    assert_eq!(cluster.starts, starts);
}

#[test]
fn an_unavailable_store_stops_all_owners_and_moves_nothing_when_it_is_back() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    let starts = cluster.starts;
    for unavailable_for in [LEASE / 2, LEASE * 4, MINUTE * 10] {
        cluster.store_answers(false);
        let store_calls = cluster.store_calls;
        cluster.run(unavailable_for);
        let sent = cluster.store_calls - store_calls;
        let most = usize::try_from(unavailable_for.as_millis()).unwrap() / 200
            * (usize::from(PARTITIONS) + 6)
            + 50;
        assert!(sent <= most, "no busy loop: {sent} requests in {unavailable_for:?}");
        if unavailable_for > LEASE {
            assert_eq!(cluster.vacant(), usize::from(PARTITIONS), "no owner acts");
        }
        cluster.store_answers(true);
        cluster.run_until(ms(1_000), |cluster| cluster.vacant() == 0);
        cluster.run(LEASE * 3);
        cluster.assert_settled();
    }
    assert_eq!(cluster.starts, starts, "every owner keeps its epoch");
}

#[test]
fn a_store_that_loses_the_members_moves_nothing() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    let starts = cluster.starts;
    for _ in 0..5 {
        cluster.forget_members();
        cluster.run(ms(3_333));
    }
    cluster.assert_settled();
    assert_eq!(cluster.starts, starts);
}

#[test]
fn a_fourth_broker_gets_its_share_within_moments_and_the_rest_stays() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    let starts = cluster.starts;
    cluster.start("d:1");
    let mut gap = Duration::ZERO;
    let took = cluster.run_until(LEASE, |cluster| cluster.count("d:1") == 4);
    assert!(took < ms(1_500), "took {took:?}");
    for _ in 0..2_000 {
        cluster.run(ms(1));
        if cluster.vacant() > 0 {
            gap += ms(1);
        }
    }
    assert_eq!(gap, Duration::ZERO, "the move is over when the fourth has its share");
    cluster.run(MINUTE);
    cluster.assert_settled();
    assert_eq!(cluster.starts, starts + 4);
}

#[test]
fn a_partition_is_without_an_owner_only_for_moments_during_a_hand_over() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    cluster.start("d:1");
    let (mut gap, mut longest) = (0, 0);
    for _ in 0..10_000 {
        cluster.run(ms(1));
        gap = if cluster.vacant() > 0 { gap + 1 } else { 0 };
        longest = longest.max(gap);
    }
    assert!((25..40).contains(&longest), "no owner acted for {longest} ms");
}

#[test]
fn a_successor_that_cannot_be_notified_takes_over_on_its_own() {
    let mut cluster = TestCluster::of(&["a:1", "b:1"]);
    for other in ["a:1", "b:1"] {
        cluster.disconnect(other, "c:1");
    }
    let starts = cluster.starts;
    cluster.start("c:1");
    cluster.run(LEASE * 2);
    cluster.assert_settled();
    assert_eq!(cluster.starts - starts, cluster.count("c:1"), "each was moved once");
}

#[test]
fn a_partition_stays_with_its_owner_if_the_successor_is_gone() {
    for (dies, within) in [(true, LEASE * 2 / 3), (false, ms(400))] {
        let mut cluster = TestCluster::of(&["a:1", "b:1"]);
        cluster.start("c:1");
        // Some owners are quiet, and the successor is about to be notified.
        cluster.run_until(LEASE, |cluster| cluster.vacant() > 0);
        if dies {
            cluster.kill("c:1")
        } else {
            cluster.leave("c:1")
        }
        let took = cluster.run_until(LEASE, |cluster| cluster.vacant() == 0);
        assert!(took < within, "dies {dies}: took {took:?}");
        cluster.run(MINUTE);
        cluster.assert_settled();
        assert_eq!(cluster.count("a:1"), 8, "dies {dies}");
    }
}

#[test]
fn a_leaving_broker_finds_another_successor_if_the_first_refuses() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    let leader = cluster.leader();
    let names = ["a:1", "b:1", "c:1"];
    let others: Vec<_> = names.into_iter().filter(|name| *name != leader).collect();
    cluster.leave(others[0]);
    cluster.run_until(LEASE, |cluster| cluster.vacant() > 0);
    cluster.leave(others[1]);
    let took = cluster.run_until(LEASE, |cluster| cluster.count(leader) == usize::from(PARTITIONS));
    assert!(took < LEASE / 2, "took {took:?}");
    cluster.run(LEASE);
    assert!(others.iter().all(|name| !cluster.is_running(name)));
}

#[test]
fn brokers_that_cannot_reach_each_other_keep_their_partitions() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    let starts = cluster.starts;
    cluster.disconnect("a:1", "b:1");
    cluster.run(MINUTE);
    cluster.assert_settled();
    assert_eq!(cluster.starts, starts);
}

#[test]
fn a_leaving_broker_hands_everything_over_first() {
    for leads in [true, false] {
        let names = ["a:1", "b:1", "c:1"];
        let mut cluster = TestCluster::of(&names);
        let leader = cluster.leader();
        let leaver =
            if leads { leader } else { names.into_iter().find(|name| *name != leader).unwrap() };
        let (starts, had) = (cluster.starts, cluster.count(leaver));
        cluster.leave(leaver);
        let took = cluster.run_until(LEASE, |cluster| !cluster.is_running(leaver));
        assert!(took < ms(1_800), "leader {leads}: took {took:?}");
        assert_eq!(cluster.vacant(), 0, "all is handed over before it leaves");
        cluster.run(MINUTE);
        cluster.assert_settled();
        assert_eq!(cluster.starts, starts + had);
    }
}

#[test]
fn the_last_broker_leaves_at_once_and_the_next_one_takes_all() {
    let mut cluster = TestCluster::of(&["a:1"]);
    cluster.leave("a:1");
    let took = cluster.run_until(LEASE, |cluster| !cluster.is_running("a:1"));
    assert!(took < ms(200), "took {took:?}");
    cluster.start("b:1");
    let took = cluster.run_until(LEASE, |cluster| cluster.vacant() == 0);
    assert!(took < ms(1_500), "leases were released: took {took:?}");
}

#[test]
fn all_brokers_can_leave_together() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    for name in ["a:1", "b:1", "c:1"] {
        cluster.leave(name);
    }
    cluster.run(LEASE * 2);
    for name in ["a:1", "b:1", "c:1"] {
        assert!(!cluster.is_running(name), "{name} has left");
    }
}

#[test]
fn a_broker_leaves_in_bounded_time_without_its_store() {
    let mut cluster = TestCluster::of(&["a:1", "b:1"]);
    cluster.store_answers(false);
    cluster.leave("a:1");
    cluster.run(LEASE * 2 + ms(100));
    assert!(!cluster.is_running("a:1"));
}

#[test]
fn a_broker_with_a_skewed_clock_gives_up_its_partitions_until_it_is_right() {
    let mut cluster = TestCluster::of(&["a:1", "b:1", "c:1"]);
    // The clock is set back by a restart: it never goes back while a broker runs.
    cluster.set_clock_forward("b:1", 400);
    cluster.run(LEASE);
    assert_eq!(cluster.skew("b:1"), Some(400));
    assert_eq!(cluster.count("b:1"), 0);
    cluster.assert_settled();
    cluster.kill("b:1");
    cluster.start_with_clock("b:1", -10_000);
    cluster.run(LEASE);
    assert_eq!(cluster.skew("b:1"), Some(-10_000));
    assert_eq!(cluster.count("b:1"), 0, "it never got any");
    cluster.assert_settled();
    cluster.set_clock_forward("b:1", 9_950);
    cluster.run(LEASE);
    assert_eq!(cluster.skew("b:1"), None);
    cluster.assert_settled();
}

#[test]
fn a_broker_that_starts_with_a_wrong_clock_never_gets_a_partition() {
    let mut cluster = TestCluster::of(&["a:1", "b:1"]);
    let starts = cluster.starts;
    cluster.start_with_clock("c:1", 60_000);
    cluster.run(MINUTE);
    assert_eq!(cluster.skew("c:1"), Some(60_000));
    assert_eq!(cluster.starts, starts);
    cluster.assert_settled();
}

#[test]
fn an_owner_that_fails_is_started_again_with_a_new_epoch() {
    let mut cluster = TestCluster::of(&["a:1", "b:1"]);
    for _ in 0..4 {
        cluster.fail_owner("a:1");
        cluster.run_until(LEASE, |cluster| cluster.vacant() == 0);
    }
    cluster.run(LEASE);
    cluster.assert_settled();
}
