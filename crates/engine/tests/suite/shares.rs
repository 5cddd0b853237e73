//! One namespace that uses up memory: others still fire.

use crate::fixture::{OwnerFixture, PARTITION, once, secs};
use punctual_core::{Namespace, NewTask, Outcome, Queue, Target};
use punctual_engine::{Budget, Condition, Event};

const BUDGET: Budget = Budget { tasks: 800, payload_bytes: 1 << 20 };

fn hostile() -> Namespace {
    Namespace::new("hostile").unwrap()
}

fn task_of_hostile(queue: &str) -> NewTask {
    let target = Target::Queue(Queue::new(queue).unwrap());
    NewTask { namespace: hostile(), target, ..once(secs(0)) }
}

fn set_capacity(fixture: &mut OwnerFixture, queue: &str, capacity: usize) {
    let queue = Queue::new(queue).unwrap();
    let event = Event::Capacity { namespace: hostile(), queue, capacity };
    fixture.owner.on(event, fixture.now);
}

fn schedule_many(fixture: &mut OwnerFixture, queue: &str, count: usize) {
    for _ in 0..count {
        drop(fixture.send_schedule(task_of_hostile(queue), Condition::Always));
    }
    fixture.run();
}

/// Schedules tasks of the quiet namespace that are due at once. Returns how many are in flight.
fn fire_quiet(fixture: &mut OwnerFixture, count: usize) -> usize {
    for _ in 0..count {
        drop(fixture.send_schedule(once(secs(0)), Condition::Always));
    }
    fixture.advance(secs(1));
    let quiet = |it: &&punctual_engine::Delivery| it.definition.namespace != hostile();
    fixture.in_flight.iter().filter(quiet).count()
}

#[test]
fn workers_that_hold_deliveries_leave_memory_to_other_namespaces() {
    let mut fixture = OwnerFixture::with_budget(BUDGET);
    set_capacity(&mut fixture, "held", 100_000);
    schedule_many(&mut fixture, "held", 2_000);
    fixture.advance(secs(1));
    assert!(fixture.in_flight.len() <= 150, "half of 300: {}", fixture.in_flight.len());
    assert_eq!(fire_quiet(&mut fixture, 60), 60);
    assert_eq!(PARTITION, fixture.ownership.partition);
    // What was held back is sent when the workers settle.
    let mut settled = 0;
    while let Some(index) =
        fixture.in_flight.iter().position(|delivery| delivery.definition.namespace == hostile())
    {
        fixture.report_at(index, Outcome::Acked);
        fixture.run();
        settled += 1;
    }
    assert_eq!(settled, 2_000);
}

#[test]
fn many_lanes_without_workers_leave_memory_to_other_namespaces() {
    let mut fixture = OwnerFixture::with_budget(BUDGET);
    for n in 0..400 {
        schedule_many(&mut fixture, &format!("queue-{n}"), 5);
    }
    fixture.advance(secs(1));
    assert!(fixture.owner.loaded() <= 200, "a part is spilled: {}", fixture.owner.loaded());
    assert_eq!(fire_quiet(&mut fixture, 60), 60);
    // Workers come: everything is sent.
    for n in 0..400 {
        set_capacity(&mut fixture, &format!("queue-{n}"), 10);
    }
    let mut settled = 0;
    for _ in 0..60 {
        fixture.advance(secs(1));
        while let Some(index) =
            fixture.in_flight.iter().position(|delivery| delivery.definition.namespace == hostile())
        {
            fixture.report_at(index, Outcome::Acked);
            fixture.run();
            settled += 1;
        }
    }
    assert_eq!(settled, 2_000);
}
