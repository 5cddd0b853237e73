//! Lanes without workers, lanes that are full, and memory that is used up: no task is lost or sent
//! twice, and tasks that are due soon fire on time.

use std::collections::HashSet;

use crate::fixture::{OwnerFixture, keyed, millis, once, secs};
use punctual_core::{HttpTarget, Method, NewTask, Outcome, Target};
use punctual_engine::{Budget, Call, Command, Condition, Event, ScheduleCommand, StartState};

/// Acks deliveries until none is in flight. Returns how many there were.
fn ack_all(fixture: &mut OwnerFixture) -> usize {
    let mut count = 0;
    let mut seen = HashSet::new();
    fixture.run();
    while !fixture.in_flight.is_empty() {
        let reports: Vec<_> = fixture
            .in_flight
            .drain(..)
            .map(|delivery| {
                assert!(seen.insert(delivery.fire_id), "twice: {delivery:?}");
                delivery.report(Some(Outcome::Acked))
            })
            .collect();
        count += reports.len();
        fixture.owner.on(Event::Ended(reports), fixture.now);
        fixture.run();
    }
    count
}

#[test]
fn a_lane_without_workers_is_parked_and_continues_when_one_connects() {
    let mut fixture = OwnerFixture::new();
    fixture.set_capacity(0);
    for n in 0..5000 {
        drop(fixture.send_schedule(keyed(&format!("order-{n}"), secs(n % 3)), Condition::Always));
    }
    fixture.advance(secs(4));
    assert!(fixture.in_flight.is_empty());
    assert_eq!(fixture.gauges().queued, 5000);
    fixture.advance(secs(10));
    assert_eq!(fixture.owner.loaded(), 0, "parked");
    let parked = fixture.gauges();
    assert_eq!((parked.queued, parked.parked_lanes), (0, 1));
    assert!(parked.oldest_overdue.is_some());
    // Another task of the parked lane does not stay in memory either.
    fixture.schedule(once(secs(0)));
    fixture.advance(secs(1));
    assert_eq!(fixture.owner.loaded(), 0);
    fixture.set_capacity(100);
    assert_eq!(ack_all(&mut fixture), 5001);
    assert_eq!(fixture.counts().done, 5001);
    let over = fixture.gauges();
    assert_eq!((over.lanes, over.oldest_overdue), (0, None), "no task is overdue");
}

#[test]
fn tasks_that_a_full_lane_spilled_are_loaded_again() {
    let mut fixture = OwnerFixture::new();
    fixture.set_capacity(1000);
    let commands = (0..100_000).map(|_| {
        let (new_task, condition) = (once(secs(1)).into(), Condition::Always);
        Command::Schedule(ScheduleCommand {
            new_task,
            condition,
            receipt: None,
            start: StartState::Scheduled,
        })
    });
    let (call, _replies) = Call::new(commands.collect());
    fixture.owner.on(Event::Call(call), fixture.now);
    fixture.run();
    fixture.advance(secs(1));
    let waiting = fixture.gauges();
    assert!(waiting.queued <= 32_768, "{waiting:?}");
    // Another target is not held up by it.
    let hook = HttpTarget::new("http://127.0.0.1:9/", Method::Post, vec![]).unwrap();
    fixture.in_flight.clear();
    let before = fixture.sent.len();
    fixture.schedule(NewTask { target: Target::Http(hook), ..once(secs(0)) });
    assert_eq!(fixture.sent.len(), before + 1);
    // The deliveries that were dropped above are still in flight for the owner; they end now.
    let dropped: Vec<_> = fixture.sent.drain(..).collect();
    let reports = dropped.iter().map(|delivery| delivery.report(Some(Outcome::Acked))).collect();
    fixture.in_flight.clear();
    fixture.owner.on(Event::Ended(reports), fixture.now);
    assert_eq!(dropped.len() + ack_all(&mut fixture), 100_001);
    assert_eq!(fixture.counts().done, 100_001);
    assert_eq!(fixture.owner.loaded(), 0);
}

#[test]
fn when_memory_is_used_up_the_horizon_comes_nearer_and_tasks_fire_on_time() {
    let mut fixture = OwnerFixture::with_budget(Budget { tasks: 1000, payload_bytes: 1 << 20 });
    for n in 0..20_000u64 {
        let delay = millis(1000 + n);
        drop(fixture.send_schedule(once(delay), Condition::Always));
        if n % 100 == 0 {
            fixture.run();
        }
    }
    fixture.run();
    assert!(fixture.owner.loaded() <= 3000, "{}", fixture.owner.loaded());
    let mut received = 0;
    for _ in 0..21_100 {
        fixture.run();
        let reports: Vec<_> = fixture
            .in_flight
            .drain(..)
            .map(|delivery| {
                assert_eq!(delivery.fired_at, delivery.fire_at, "on time");
                delivery.report(Some(Outcome::Acked))
            })
            .collect();
        received += reports.len();
        fixture.owner.on(Event::Ended(reports), fixture.now);
        fixture.now = fixture.now.after(millis(1));
    }
    assert_eq!(received, 20_000);
    assert_eq!(fixture.counts().done, 20_000);
}

#[test]
fn a_parked_lane_and_a_busy_one_do_not_starve_each_other() {
    let mut fixture = OwnerFixture::with_budget(Budget { tasks: 2000, payload_bytes: 1 << 20 });
    fixture.set_capacity(0);
    for n in 0..5000 {
        drop(fixture.send_schedule(keyed(&format!("n{n}"), secs(1)), Condition::Always));
    }
    fixture.run();
    let hook = HttpTarget::new("http://127.0.0.1:9/", Method::Post, vec![]).unwrap();
    let to_hook = || NewTask { target: Target::Http(hook.clone()), ..once(secs(2)) };
    for _ in 0..5000 {
        drop(fixture.send_schedule(to_hook(), Condition::Always));
    }
    fixture.run();
    let mut webhooks = 0;
    for _ in 0..40 {
        webhooks += ack_all(&mut fixture);
        fixture.now = fixture.now.after(millis(250));
    }
    assert_eq!(webhooks, 5000, "all tasks of the webhook");
    fixture.set_capacity(10);
    assert_eq!(ack_all(&mut fixture), 5000, "and the rest when a worker connects");
    assert_eq!(fixture.counts().done, 10_000);
}
