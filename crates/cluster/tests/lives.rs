//! Lives of clusters, in moved time.

mod world;

use std::time::Duration;

use world::{LEASE, PARTITIONS, World};

const MINUTE: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn other_than(leader: &str) -> &'static str {
    if leader == "a:1" { "b:1" } else { "a:1" }
}

#[test]
fn three_that_start_together_share_evenly_and_nothing_moves_after_that() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    assert_eq!(world.starts, usize::from(PARTITIONS), "nothing was moved on the way");
    world.run(MINUTE * 5);
    world.assert_settled();
    assert_eq!(world.starts, usize::from(PARTITIONS));
}

#[test]
fn one_alone_serves_all_soon() {
    let mut world = World::new();
    world.start("a:1");
    let took = world.run_until(LEASE, |world| world.vacant() == 0);
    assert!(took < ms(1_500), "took {took:?}");
}

#[test]
fn one_that_comes_back_at_once_takes_up_what_it_had() {
    let mut world = World::of(&["a:1", "b:1"]);
    for name in ["a:1", "b:1"] {
        world.kill(name);
        world.start(name);
        let took = world.run_until(LEASE, |world| world.vacant() == 0);
        assert!(took < ms(500), "took {took:?}");
    }
    world.run(MINUTE);
    world.assert_settled();
    assert_eq!(world.starts, 2 * usize::from(PARTITIONS), "nothing else moved");
}

#[test]
fn what_a_killed_broker_had_is_taken_over_when_its_lease_is_over() {
    let names = ["a:1", "b:1", "c:1"];
    // At any moment between two renewals.
    for (leads, moment) in
        [true, false].into_iter().flat_map(|leads| (0..8).map(move |n| (leads, n * 211)))
    {
        let mut world = World::of(&names);
        world.run(ms(moment));
        let leader = world.leader();
        let victim = if leads { leader } else { other_than(leader) };
        let had = world.count(victim);
        let starts = world.starts;
        world.kill(victim);
        let took = world.run_until(LEASE * 2, |world| world.vacant() == 0);
        assert!((LEASE / 2..LEASE + ms(500)).contains(&took), "leader {leads}: took {took:?}");
        world.run(MINUTE);
        world.assert_settled();
        assert_eq!(world.starts, starts + had, "nothing else moved");
    }
}

#[test]
fn one_that_sleeps_beyond_its_lease_wakes_up_to_nothing_and_gets_its_share_again() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    for name in ["a:1", "b:1", "c:1"] {
        world.sleep(name);
        world.run(LEASE * 3);
        assert_eq!(world.count(name), 0, "its owners stand still");
        assert_eq!(world.vacant(), 0, "the others have all");
        world.wake(name);
        world.run(LEASE * 2);
        world.assert_settled();
    }
}

#[test]
fn a_short_sleep_moves_nothing() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    let starts = world.starts;
    for name in ["a:1", "b:1", "c:1"] {
        world.sleep(name);
        world.run(LEASE * 2 / 5);
        world.wake(name);
        world.run(LEASE * 2);
        world.assert_settled();
    }
    assert_eq!(world.starts, starts);
}

#[test]
fn a_store_that_is_away_stops_all_and_moves_nothing_when_it_is_back() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    let starts = world.starts;
    for away in [LEASE / 2, LEASE * 4, MINUTE * 10] {
        world.store_answers(false);
        let questions = world.questions;
        world.run(away);
        let asked = world.questions - questions;
        let most =
            usize::try_from(away.as_millis()).unwrap() / 200 * (usize::from(PARTITIONS) + 6) + 50;
        assert!(asked <= most, "no busy loop: {asked} questions in {away:?}");
        if away > LEASE {
            assert_eq!(world.vacant(), usize::from(PARTITIONS), "nobody acts");
        }
        world.store_answers(true);
        world.run_until(ms(1_000), |world| world.vacant() == 0);
        world.run(LEASE * 3);
        world.assert_settled();
    }
    assert_eq!(world.starts, starts, "every owner goes on under its epoch");
}

#[test]
fn a_store_that_loses_the_roster_moves_nothing() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    let starts = world.starts;
    for _ in 0..5 {
        world.store_forgets_the_roster();
        world.run(ms(3_333));
    }
    world.assert_settled();
    assert_eq!(world.starts, starts);
}

#[test]
fn a_fourth_gets_its_share_within_moments_and_the_rest_stays() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    let starts = world.starts;
    world.start("d:1");
    let mut gap = Duration::ZERO;
    let took = world.run_until(LEASE, |world| world.count("d:1") == 4);
    assert!(took < ms(1_500), "took {took:?}");
    for _ in 0..2_000 {
        world.run(ms(1));
        if world.vacant() > 0 {
            gap += ms(1);
        }
    }
    assert_eq!(gap, Duration::ZERO, "all is over when the fourth has its share");
    world.run(MINUTE);
    world.assert_settled();
    assert_eq!(world.starts, starts + 4);
}

#[test]
fn a_hand_over_leaves_a_partition_alone_for_moments_only() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    world.start("d:1");
    let (mut gap, mut longest) = (0, 0);
    for _ in 0..10_000 {
        world.run(ms(1));
        gap = if world.vacant() > 0 { gap + 1 } else { 0 };
        longest = longest.max(gap);
    }
    assert!((25..40).contains(&longest), "for {longest} ms nobody acted");
}

#[test]
fn an_heir_that_cannot_be_told_takes_over_by_itself() {
    let mut world = World::of(&["a:1", "b:1"]);
    for other in ["a:1", "b:1"] {
        world.cut(other, "c:1");
    }
    let starts = world.starts;
    world.start("c:1");
    world.run(LEASE * 2);
    world.assert_settled();
    assert_eq!(world.starts - starts, world.count("c:1"), "each was moved once");
}

#[test]
fn what_an_heir_was_to_have_that_is_gone_by_then_stays_where_it_was() {
    for (dies, within) in [(true, LEASE * 2 / 3), (false, ms(400))] {
        let mut world = World::of(&["a:1", "b:1"]);
        world.start("c:1");
        // Owners are quiet, and about to tell it.
        world.run_until(LEASE, |world| world.vacant() > 0);
        if dies {
            world.kill("c:1")
        } else {
            world.leave("c:1")
        }
        let took = world.run_until(LEASE, |world| world.vacant() == 0);
        assert!(took < within, "dies {dies}: took {took:?}");
        world.run(MINUTE);
        world.assert_settled();
        assert_eq!(world.count("a:1"), 8, "dies {dies}");
    }
}

#[test]
fn one_that_leaves_finds_another_heir_for_what_the_first_does_not_want() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    let leader = world.leader();
    let names = ["a:1", "b:1", "c:1"];
    let others: Vec<_> = names.into_iter().filter(|name| *name != leader).collect();
    world.leave(others[0]);
    world.run_until(LEASE, |world| world.vacant() > 0);
    world.leave(others[1]);
    let took = world.run_until(LEASE, |world| world.count(leader) == usize::from(PARTITIONS));
    assert!(took < LEASE / 2, "took {took:?}");
    world.run(LEASE);
    assert!(others.iter().all(|name| !world.is_there(name)));
}

#[test]
fn brokers_that_cannot_reach_each_other_notice_nothing() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    let starts = world.starts;
    world.cut("a:1", "b:1");
    world.run(MINUTE);
    world.assert_settled();
    assert_eq!(world.starts, starts);
}

#[test]
fn one_that_leaves_hands_everything_over_first() {
    for leads in [true, false] {
        let names = ["a:1", "b:1", "c:1"];
        let mut world = World::of(&names);
        let leader = world.leader();
        let leaver =
            if leads { leader } else { names.into_iter().find(|name| *name != leader).unwrap() };
        let (starts, had) = (world.starts, world.count(leaver));
        world.leave(leaver);
        let took = world.run_until(LEASE, |world| !world.is_there(leaver));
        assert!(took < ms(1_800), "leader {leads}: took {took:?}");
        assert_eq!(world.vacant(), 0, "all is handed over when it has left");
        world.run(MINUTE);
        world.assert_settled();
        assert_eq!(world.starts, starts + had);
    }
}

#[test]
fn the_last_one_leaves_at_once_and_the_next_one_takes_all() {
    let mut world = World::of(&["a:1"]);
    world.leave("a:1");
    let took = world.run_until(LEASE, |world| !world.is_there("a:1"));
    assert!(took < ms(200), "took {took:?}");
    world.start("b:1");
    let took = world.run_until(LEASE, |world| world.vacant() == 0);
    assert!(took < ms(1_500), "leases were given back: took {took:?}");
}

#[test]
fn all_leave_together() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    for name in ["a:1", "b:1", "c:1"] {
        world.leave(name);
    }
    world.run(LEASE * 2);
    for name in ["a:1", "b:1", "c:1"] {
        assert!(!world.is_there(name), "{name} has left");
    }
}

#[test]
fn one_that_leaves_without_its_store_leaves_in_bounded_time() {
    let mut world = World::of(&["a:1", "b:1"]);
    world.store_answers(false);
    world.leave("a:1");
    world.run(LEASE * 2 + ms(100));
    assert!(!world.is_there("a:1"));
}

#[test]
fn one_whose_clock_is_off_gives_up_what_it_has_and_comes_back() {
    let mut world = World::of(&["a:1", "b:1", "c:1"]);
    // Back in time by starting anew: a clock never goes back within a life.
    world.set_clock_on("b:1", 400);
    world.run(LEASE);
    assert_eq!(world.skew("b:1"), Some(400));
    assert_eq!(world.count("b:1"), 0);
    world.assert_settled();
    world.kill("b:1");
    world.start_ahead("b:1", -10_000);
    world.run(LEASE);
    assert_eq!(world.skew("b:1"), Some(-10_000));
    assert_eq!(world.count("b:1"), 0, "it never had any");
    world.assert_settled();
    world.set_clock_on("b:1", 9_950);
    world.run(LEASE);
    assert_eq!(world.skew("b:1"), None);
    world.assert_settled();
}

#[test]
fn one_that_starts_with_a_wrong_clock_never_gets_a_partition() {
    let mut world = World::of(&["a:1", "b:1"]);
    let starts = world.starts;
    world.start_ahead("c:1", 60_000);
    world.run(MINUTE);
    assert_eq!(world.skew("c:1"), Some(60_000));
    assert_eq!(world.starts, starts);
    world.assert_settled();
}

#[test]
fn an_owner_that_breaks_is_started_again_under_a_new_epoch() {
    let mut world = World::of(&["a:1", "b:1"]);
    for _ in 0..4 {
        world.break_one("a:1");
        world.run_until(LEASE, |world| world.vacant() == 0);
    }
    world.run(LEASE);
    world.assert_settled();
}
