//! A crowd that is due at once: each turn of the owner takes a part of it, and nobody else waits for the rest.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod world;

use std::collections::HashSet;
use std::time::Duration;

use punctual_core::{Due, HttpTarget, Method, NewTask, Target, Task};
use punctual_engine::{
    Action, Call, Cancelled, Command, Condition, EngineError, Event, Push, Reply, ScheduleCommand,
};
use world::{World, named, once, secs};

const CROWD: usize = 5000;

/// A world with a crowd that is due in a second, and room for all of it.
fn world_with_crowd() -> (World, Vec<Task>) {
    let mut world = World::new();
    world.give_room(2 * CROWD);
    let orders = (0..CROWD).map(|n| {
        let new_task = named(&format!("crowd/{n}"), secs(1)).into();
        Command::Schedule(ScheduleCommand { new_task, condition: Condition::Always, receipt: None })
    });
    let (call, mut answers) = Call::new(orders.collect());
    world.owner.on(Event::Call(call), world.now);
    world.settle();
    let created = answers.try_recv().unwrap().into_iter().map(|answer| match answer {
        Ok(Reply::Scheduled(scheduled)) => scheduled.task().clone(),
        other => panic!("{other:?}"),
    });
    (world, created.collect())
}

fn neighbour(delay: Duration) -> NewTask {
    let hook = HttpTarget::new("http://127.0.0.1:9/", Method::Post, vec![]).unwrap();
    NewTask { target: Target::Http(hook), ..once(delay) }
}

#[test]
fn who_is_due_a_moment_later_does_not_wait_for_a_crowd() {
    let (mut world, _) = world_with_crowd();
    let later = world.schedule(neighbour(Duration::from_millis(1001)));
    world.now = world.now.after(secs(1));
    world.turn();
    assert!(!world.carried.is_empty(), "the crowd has begun");
    assert!(world.owner.is_busy(), "and is not through");
    world.now = world.now.after(Duration::from_millis(1));
    world.turn();
    assert!(world.carried.iter().any(|delivery| delivery.fire_id.task == later.id));
    assert!(world.carried.len() < CROWD);
    world.act();
    let all: HashSet<_> = world.carried.iter().map(|delivery| delivery.fire_id).collect();
    assert_eq!((all.len(), world.carried.len()), (CROWD + 1, CROWD + 1), "each once");
}

#[test]
fn one_that_is_cancelled_or_moved_while_its_turn_comes_does_not_fire() {
    let (mut world, crowd) = world_with_crowd();
    world.now = world.now.after(secs(1));
    world.turn();
    let fired: HashSet<_> = world.carried.iter().map(|delivery| delivery.fire_id.task).collect();
    let mut left = crowd.iter().filter(|task| !fired.contains(&task.id)).rev();
    let (cancelled, moved) = (left.next().unwrap(), left.next().unwrap());
    let push = Push::To(Due::In(secs(60)));
    let commands =
        vec![Command::Cancel(world::id(cancelled)), Command::Touch(world::id(moved), push)];
    let (call, mut answers) = Call::new(commands);
    world.owner.on(Event::Call(call), world.now);
    world.turn();
    // They are looked up, and decided while most of the crowd is in line.
    let look = world.wanted.iter().position(|action| matches!(action, Action::Lookup(_))).unwrap();
    let look = world.wanted.remove(look);
    let looked = world.answer(look);
    world.owner.on(looked, world.now);
    assert!(world.owner.is_busy());
    world.settle();
    let answers = answers.try_recv().unwrap();
    assert_eq!(answers[0], Ok(Reply::Cancelled(Cancelled::Cancelled)));
    assert!(matches!(answers[1], Ok(Reply::Touched { .. })), "{answers:?}");
    let fired: HashSet<_> = world.carried.iter().map(|delivery| delivery.fire_id.task).collect();
    assert_eq!(fired.len(), CROWD - 2);
    assert!(!fired.contains(&cancelled.id) && !fired.contains(&moved.id));
    world.pass(secs(61));
    assert_eq!(world.carried.last().unwrap().fire_id.task, moved.id, "at its new time");
}

#[test]
fn the_store_has_the_next_batch_before_all_effects_of_a_large_one_are_done() {
    let mut world = World::new();
    let orders = (0..CROWD).map(|_| {
        let new_task = once(secs(1)).into();
        Command::Schedule(ScheduleCommand { new_task, condition: Condition::Always, receipt: None })
    });
    let (call, _answers) = Call::new(orders.collect());
    world.owner.on(Event::Call(call), world.now);
    world.turn();
    let mut late = world.send_schedule(once(secs(1)), Condition::Always);
    let is_batch = |action: &Action| matches!(action, Action::Apply(_));
    let batch = world.wanted.iter().position(is_batch).unwrap();
    let Action::Apply(batch) = world.wanted.remove(batch) else { unreachable!() };
    let size = batch.changes.len();
    assert!(size > 1024, "{size}");
    let made = world.make(batch);
    world.owner.on(Event::Applied(made), world.now);
    world.turn();
    assert!(world.wanted.iter().any(is_batch), "under way");
    assert!(world.owner.is_busy(), "while effects are left");
    world.settle();
    assert!(late.try_recv().unwrap().is_ok());
    world.pass(secs(2));
    assert_eq!(world.gauges().queued + world.carried.len(), CROWD + 1, "all were filed");
}

#[test]
fn who_calls_an_owner_that_drains_is_refused() {
    let mut world = World::new();
    world.owner.on(Event::Drain, world.now);
    let mut answer = world.send_schedule(once(secs(1)), Condition::Always);
    assert_eq!(answer.try_recv().unwrap(), Err(EngineError::Stopped));
    assert!(world.owner.is_quiet());
}
