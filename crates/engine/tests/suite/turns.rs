//! Many tasks that are due at once: each turn of the owner takes a part of them, and other tasks do
//! not wait for the rest.

use std::collections::HashSet;
use std::time::Duration;

use crate::fixture::{OwnerFixture, id, keyed, once, secs};
use punctual_core::{Due, HttpTarget, Method, NewTask, Target, Task};
use punctual_engine::{
    Action, Call, Cancelled, Command, Condition, EngineError, Event, Reply, ScheduleCommand,
    StartState, TouchTo,
};

const DUE: usize = 5000;

/// Schedules many tasks that are due in a second, with capacity for all of them.
fn with_many_due() -> (OwnerFixture, Vec<Task>) {
    let mut fixture = OwnerFixture::new();
    fixture.set_capacity(2 * DUE);
    let commands = (0..DUE).map(|n| {
        let new_task = keyed(&format!("due/{n}"), secs(1)).into();
        Command::Schedule(ScheduleCommand {
            new_task,
            condition: Condition::Always,
            receipt: None,
            start: StartState::Scheduled,
        })
    });
    let (call, mut replies) = Call::new(commands.collect());
    fixture.owner.on(Event::Call(call), fixture.now);
    fixture.run();
    let created = replies.try_recv().unwrap().into_iter().map(|answer| match answer {
        Ok(Reply::Scheduled(scheduled)) => scheduled.task().clone(),
        other => panic!("{other:?}"),
    });
    (fixture, created.collect())
}

fn to_webhook(delay: Duration) -> NewTask {
    let hook = HttpTarget::new("http://127.0.0.1:9/", Method::Post, vec![]).unwrap();
    NewTask { target: Target::Http(hook), ..once(delay) }
}

#[test]
fn a_task_that_is_due_a_moment_later_does_not_wait_for_all_others() {
    let (mut fixture, _) = with_many_due();
    let later = fixture.schedule(to_webhook(Duration::from_millis(1001)));
    fixture.now = fixture.now.after(secs(1));
    fixture.turn();
    assert!(!fixture.in_flight.is_empty(), "some were sent");
    assert!(fixture.owner.is_busy(), "and others are left");
    fixture.now = fixture.now.after(Duration::from_millis(1));
    fixture.turn();
    assert!(fixture.in_flight.iter().any(|delivery| delivery.fire_id.task == later.id));
    assert!(fixture.in_flight.len() < DUE);
    fixture.act();
    let all: HashSet<_> = fixture.in_flight.iter().map(|delivery| delivery.fire_id).collect();
    assert_eq!((all.len(), fixture.in_flight.len()), (DUE + 1, DUE + 1), "each once");
}

#[test]
fn a_due_task_that_is_cancelled_or_moved_before_its_turn_does_not_fire() {
    let (mut fixture, due) = with_many_due();
    fixture.now = fixture.now.after(secs(1));
    fixture.turn();
    let fired: HashSet<_> =
        fixture.in_flight.iter().map(|delivery| delivery.fire_id.task).collect();
    let mut left = due.iter().filter(|task| !fired.contains(&task.id)).rev();
    let (cancelled, moved) = (left.next().unwrap(), left.next().unwrap());
    let push = TouchTo::To(Due::In(secs(60)));
    let commands = vec![Command::Cancel(id(cancelled)), Command::Touch(id(moved), push)];
    let (call, mut replies) = Call::new(commands);
    fixture.owner.on(Event::Call(call), fixture.now);
    fixture.turn();
    // Both are decided while most of the due tasks wait.
    let lookup = fixture.actions.iter().position(|it| matches!(it, Action::Lookup(_))).unwrap();
    let lookup = fixture.actions.remove(lookup);
    let results = fixture.answer(lookup);
    fixture.owner.on(results, fixture.now);
    assert!(fixture.owner.is_busy());
    fixture.run();
    let replies = replies.try_recv().unwrap();
    assert_eq!(replies[0], Ok(Reply::Cancelled(Cancelled::Cancelled)));
    assert!(matches!(replies[1], Ok(Reply::Touched { .. })), "{replies:?}");
    let fired: HashSet<_> =
        fixture.in_flight.iter().map(|delivery| delivery.fire_id.task).collect();
    assert_eq!(fired.len(), DUE - 2);
    assert!(!fired.contains(&cancelled.id) && !fired.contains(&moved.id));
    fixture.advance(secs(61));
    assert_eq!(fixture.in_flight.last().unwrap().fire_id.task, moved.id, "at its new time");
}

#[test]
fn the_store_has_the_next_batch_before_all_effects_of_a_large_one_are_done() {
    let mut fixture = OwnerFixture::new();
    let commands = (0..DUE).map(|_| {
        let new_task = once(secs(1)).into();
        Command::Schedule(ScheduleCommand {
            new_task,
            condition: Condition::Always,
            receipt: None,
            start: StartState::Scheduled,
        })
    });
    let (call, _replies) = Call::new(commands.collect());
    fixture.owner.on(Event::Call(call), fixture.now);
    fixture.turn();
    let mut late = fixture.send_schedule(once(secs(1)), Condition::Always);
    let is_batch = |action: &Action| matches!(action, Action::Apply(_));
    let batch = fixture.actions.iter().position(is_batch).unwrap();
    let Action::Apply(batch) = fixture.actions.remove(batch) else { unreachable!() };
    let size = batch.changes.len();
    assert!(size > 1024, "{size}");
    let written = fixture.write(batch);
    fixture.owner.on(Event::Applied(written), fixture.now);
    fixture.turn();
    assert!(fixture.actions.iter().any(is_batch), "in flight");
    assert!(fixture.owner.is_busy(), "while effects are left");
    fixture.run();
    assert!(late.try_recv().unwrap().is_ok());
    fixture.advance(secs(2));
    assert_eq!(fixture.gauges().queued + fixture.in_flight.len(), DUE + 1, "all are in memory");
}

#[test]
fn an_owner_that_drains_refuses_calls() {
    let mut fixture = OwnerFixture::new();
    fixture.owner.on(Event::Drain, fixture.now);
    let mut answer = fixture.send_schedule(once(secs(1)), Condition::Always);
    assert_eq!(answer.try_recv().unwrap(), Err(EngineError::Stopped));
    assert!(fixture.owner.is_quiet());
}

#[test]
fn the_thread_is_spared_until_something_is_due_and_not_while_it_fires() {
    let mut fixture = OwnerFixture::new();
    fixture.set_capacity(8);
    let spare = |fixture: &OwnerFixture| fixture.owner.spare_time(fixture.now);
    fixture.schedule(once(Duration::from_millis(5)));
    assert!(spare(&fixture) <= Duration::from_millis(5), "{:?}", spare(&fixture));
    assert!(spare(&fixture) > Duration::ZERO);
    fixture.advance(Duration::from_millis(5));
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(spare(&fixture), Duration::ZERO, "a delivery is in flight");
    fixture.report(punctual_core::Outcome::Acked);
    fixture.run();
    assert!(spare(&fixture) > Duration::from_millis(5), "{:?}", spare(&fixture));
    fixture.schedule(once(Duration::ZERO));
    assert_eq!(spare(&fixture), Duration::ZERO, "a task is due");
}
