//! Lanes without workers, with too much to do, and memory that is used up: nothing is lost, nothing is sent twice, and what is
//! near goes on firing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod world;

use std::collections::HashSet;

use punctual_core::{HttpTarget, Method, NewTask, Outcome, Target};
use punctual_engine::{Budget, Condition, Event};
use tokio::sync::oneshot;
use world::{World, named, once, secs, shop};

/// All couriers succeed until nothing is on its way any more. Out: how many deliveries there were.
fn carry_all(world: &mut World) -> usize {
    let mut count = 0;
    let mut seen = HashSet::new();
    world.settle();
    while !world.carried.is_empty() {
        let reports: Vec<_> = world
            .carried
            .drain(..)
            .map(|delivery| {
                assert!(seen.insert(delivery.fire_id), "twice: {delivery:?}");
                delivery.report(Some(Outcome::Acked))
            })
            .collect();
        count += reports.len();
        world.owner.on(Event::Ended(reports), world.now);
        world.settle();
    }
    count
}

fn gauges(world: &mut World) -> punctual_engine::Gauges {
    let (reply, mut gauges) = oneshot::channel();
    world.owner.on(Event::Gauge(Some(shop()), reply), world.now);
    gauges.try_recv().unwrap()
}

#[test]
fn a_lane_without_workers_holds_nothing_in_memory_and_goes_on_when_one_comes() {
    let mut world = World::new();
    world.give_room(0);
    for n in 0..5000 {
        drop(world.send_schedule(named(&format!("order-{n}"), secs(n % 3)), Condition::Always));
    }
    world.pass(secs(4));
    assert!(world.carried.is_empty());
    assert_eq!(gauges(&mut world).queued, 5000);
    world.pass(secs(10));
    assert_eq!(world.owner.loaded(), 0, "parked");
    let parked = gauges(&mut world);
    assert_eq!((parked.queued, parked.parked_lanes), (0, 1));
    assert!(parked.oldest_overdue.is_some());
    // One more for the parked lane does not stay either.
    world.schedule(once(secs(0)));
    world.pass(secs(1));
    assert_eq!(world.owner.loaded(), 0);
    world.give_room(100);
    assert_eq!(carry_all(&mut world), 5001);
    assert_eq!(world.counts().done, 5001);
    let over = gauges(&mut world);
    assert_eq!((over.lanes, over.oldest_overdue), (0, None), "nothing stays overdue");
}

#[test]
fn more_than_a_lane_holds_comes_back_from_the_store() {
    let mut world = World::new();
    world.give_room(1000);
    let orders = (0..100_000).map(|_| once(secs(1))).map(|new_task| {
        let condition = Condition::Always;
        let new_task = new_task.into();
        punctual_engine::Command::Schedule(punctual_engine::ScheduleCommand {
            new_task,
            condition,
            receipt: None,
        })
    });
    let (call, _answers) = punctual_engine::Call::new(orders.collect());
    world.owner.on(Event::Call(call), world.now);
    world.settle();
    world.pass(secs(1));
    let waiting = gauges(&mut world);
    assert!(waiting.queued <= 32_768, "{waiting:?}");
    // Another target is not held up by it.
    let hook = HttpTarget::new("http://127.0.0.1:9/", Method::Post, vec![]).unwrap();
    world.carried.clear();
    let before = world.sent.len();
    world.schedule(NewTask { target: Target::Http(hook), ..once(secs(0)) });
    assert_eq!(world.sent.len(), before + 1);
    // What was dropped above is still under way for the owner; it comes back now.
    let lost: Vec<_> = world.sent.drain(..).collect();
    let reports = lost.iter().map(|delivery| delivery.report(Some(Outcome::Acked))).collect();
    world.carried.clear();
    world.owner.on(Event::Ended(reports), world.now);
    assert_eq!(lost.len() + carry_all(&mut world), 100_001);
    assert_eq!(world.counts().done, 100_001);
    assert_eq!(world.owner.loaded(), 0);
}

#[test]
fn when_memory_is_used_up_the_horizon_comes_nearer_and_everything_fires_in_time() {
    let mut world = World::with_budget(Budget { tasks: 1000, payload_bytes: 1 << 20 });
    for n in 0..20_000u64 {
        let delay = std::time::Duration::from_millis(1000 + n);
        drop(world.send_schedule(once(delay), Condition::Always));
        if n % 100 == 0 {
            world.settle();
        }
    }
    world.settle();
    assert!(world.owner.loaded() <= 3000, "{}", world.owner.loaded());
    let mut received = 0;
    for _ in 0..21_100 {
        world.settle();
        let reports: Vec<_> = world
            .carried
            .drain(..)
            .map(|delivery| {
                assert_eq!(delivery.fired_at, delivery.fire_at, "on time");
                delivery.report(Some(Outcome::Acked))
            })
            .collect();
        received += reports.len();
        world.owner.on(Event::Ended(reports), world.now);
        world.now = world.now.after(std::time::Duration::from_millis(1));
    }
    assert_eq!(received, 20_000);
    assert_eq!(world.counts().done, 20_000);
}

#[test]
fn a_parked_lane_and_a_busy_one_do_not_starve_each_other() {
    let mut world = World::with_budget(Budget { tasks: 2000, payload_bytes: 1 << 20 });
    world.give_room(0);
    for n in 0..5000 {
        drop(world.send_schedule(named(&format!("n{n}"), secs(1)), Condition::Always));
    }
    world.settle();
    let hook = HttpTarget::new("http://127.0.0.1:9/", Method::Post, vec![]).unwrap();
    let to_hook = || NewTask { target: Target::Http(hook.clone()), ..once(secs(2)) };
    for _ in 0..5000 {
        drop(world.send_schedule(to_hook(), Condition::Always));
    }
    world.settle();
    let mut webhooks = 0;
    for _ in 0..40 {
        webhooks += carry_all(&mut world);
        world.now = world.now.after(std::time::Duration::from_millis(250));
    }
    assert_eq!(webhooks, 5000, "all that could be sent");
    world.give_room(10);
    assert_eq!(carry_all(&mut world), 5000, "and the rest when somebody came");
    assert_eq!(world.counts().done, 10_000);
}
