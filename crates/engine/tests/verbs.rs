//! What callers can do to a task besides scheduling and cancelling it, as sentences.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod world;

use punctual_core::{Due, FireEnd, Guarantee, NewTask, Outcome, TaskState, Version};
use punctual_engine::{Command, Condition, EngineError, Push};
use punctual_store::TaskStore;
use world::{Weather, World, failed, id, key, millis, named, once, ready, secs, shop};

const PARTITION: punctual_core::PartitionId = punctual_core::PartitionId::FIRST;

fn to(duration: std::time::Duration) -> Push {
    Push::To(Due::In(duration))
}

#[test]
fn a_touched_task_fires_at_its_new_time_and_at_no_other() {
    for (first, then) in [(5, 9), (9, 5), (5, 500), (500, 5), (500, 700)] {
        let mut world = World::new();
        world.schedule(named("order", secs(first)));
        let fire_at = world.touch(key("order"), to(secs(then))).unwrap();
        assert_eq!(fire_at, world.now.after(secs(then)));
        world.pass(millis(then * 1000 - 1));
        assert!(world.carried.is_empty(), "{first} to {then}: early");
        world.pass(millis(1));
        assert_eq!(world.carried.len(), 1, "{first} to {then}");
        assert_eq!(world.carried[0].fire_at, fire_at);
        assert_eq!(world.carried[0].version, Version::new(2));
        world.comes_back(Outcome::Acked);
        world.pass(secs(1000));
        assert!(world.carried.is_empty(), "{first} to {then}: twice");
        assert_eq!(world.counts().done, 1);
    }
}

#[test]
fn a_task_touched_while_its_time_comes_does_not_fire_by_its_old_time() {
    let mut world = World::new();
    world.schedule(named("order", millis(5)));
    let mut answer = world.send_touch(key("order"), to(secs(9)));
    world.perform(0);
    assert!(answer.try_recv().is_err(), "decided, not durable");
    world.now = world.now.after(millis(50));
    world.settle();
    assert!(answer.try_recv().unwrap().is_ok());
    assert!(world.carried.is_empty());
    world.pass(secs(9));
    assert_eq!(world.carried.len(), 1);
}

#[test]
fn a_task_touched_while_its_page_is_read_is_held_all_the_same() {
    let mut world = World::new();
    world.schedule(named("order", secs(5)));
    world.crash();
    // The first page is wanted; the touch overtakes it.
    let mut answer = world.send_touch(key("order"), to(secs(8)));
    while world.wanted.len() > 1 {
        world.perform(1);
    }
    assert!(answer.try_recv().unwrap().is_ok());
    world.pass(secs(8));
    assert_eq!(world.carried.len(), 1);
}

#[test]
fn a_touch_during_a_retry_begins_a_new_fire() {
    let mut world = World::new();
    world.schedule(named("order", secs(1)));
    world.pass(secs(1));
    let first = world.comes_back(failed());
    world.settle();
    world.touch(key("order"), to(secs(60))).unwrap();
    world.pass(secs(60));
    assert_eq!(world.carried.len(), 1);
    assert_ne!(world.carried[0].fire_id, first.fire_id);
    assert_eq!(world.carried[0].attempt.get(), 1);
}

#[test]
fn what_cannot_be_touched_says_why() {
    let mut world = World::new();
    assert_eq!(world.touch(key("order"), to(secs(1))), Err(EngineError::NotFound));
    world.schedule(named("order", secs(5)));
    assert_eq!(world.touch(key("order"), Push::Within), Err(EngineError::NoWatch));
    world.task(Command::Pause(key("order"))).unwrap();
    assert_eq!(world.touch(key("order"), to(secs(1))), Err(EngineError::Paused));
    world.task(Command::Resume(key("order"))).unwrap();
    world.pass(secs(5));
    assert!(matches!(world.touch(key("order"), to(secs(1))), Err(EngineError::Firing(_))));
}

#[test]
fn a_paused_task_waits_until_it_is_resumed() {
    let mut world = World::new();
    world.schedule(named("order", secs(5)));
    let paused = world.task(Command::Pause(key("order"))).unwrap();
    assert_eq!(paused.state, TaskState::Paused);
    world.pass(secs(60));
    assert!(world.carried.is_empty());
    world.crash();
    world.pass(secs(60));
    assert!(world.carried.is_empty(), "after a crash as well");
    assert_eq!(world.counts().paused, 1);
    let resumed = world.task(Command::Resume(key("order"))).unwrap();
    assert_eq!((resumed.state, resumed.version), (TaskState::Scheduled, Version::new(3)));
    assert_eq!(world.carried.len(), 1, "overdue, so at once");
}

#[test]
fn pausing_twice_changes_nothing_the_second_time() {
    let mut world = World::new();
    world.schedule(named("order", secs(5)));
    let first = world.task(Command::Pause(key("order"))).unwrap();
    assert_eq!(world.task(Command::Pause(key("order"))), Ok(first));
    assert_eq!(world.task(Command::Resume(key("nobody"))), Err(EngineError::NotFound));
}

#[test]
fn an_attempt_goes_on_when_its_task_is_paused_and_what_follows_waits() {
    for outcome_first in [false, true] {
        let mut world = World::new();
        world.schedule(named("order", secs(1)));
        world.pass(secs(1));
        let mut paused = world.send_for_task(Command::Pause(key("order")));
        world.perform(0);
        if outcome_first {
            // It comes back while the pause is being written.
            world.comes_back(failed());
        }
        world.settle();
        assert!(paused.try_recv().unwrap().is_ok());
        if !outcome_first {
            world.comes_back(failed());
        }
        world.pass(secs(60));
        assert!(world.carried.is_empty(), "no retry while it is paused");
        assert_eq!((world.counts().paused, world.counts().scheduled), (1, 0));
        world.task(Command::Resume(key("order"))).unwrap();
        assert_eq!(world.carried.len(), 1);
        assert_eq!(world.carried[0].attempt.get(), 2);
        world.comes_back(Outcome::Acked);
        world.settle();
        assert_eq!((world.counts().done, world.counts().paused), (1, 0));
    }
}

#[test]
fn a_paused_task_whose_attempt_succeeds_is_done() {
    let mut world = World::new();
    world.schedule(named("order", secs(1)));
    world.pass(secs(1));
    world.task(Command::Pause(key("order"))).unwrap();
    world.comes_back(Outcome::Acked);
    world.settle();
    assert_eq!((world.counts().done, world.counts().paused), (1, 0));
    assert_eq!(world.owner.loaded(), 0);
}

fn one_dead(world: &mut World, new_task: NewTask) -> punctual_core::DeadLetter {
    world.schedule(new_task);
    world.pass(secs(1));
    world.comes_back(Outcome::Refused { reason: punctual_core::Reason::new("no") });
    world.settle();
    ready(world.store.dead(PARTITION, &shop(), None, 9)).unwrap().items.remove(0)
}

#[test]
fn a_redriven_letter_fires_again_under_its_fire_id_with_all_attempts_before_it() {
    let mut world = World::new();
    let letter = one_dead(&mut world, named("order", secs(1)));
    let (subject, fire_id) = (key("order"), letter.fire_id());
    let task = world.task(Command::Redrive { subject: subject.clone(), fire_id }).unwrap();
    assert_eq!(task.id, letter.task.id);
    assert_eq!(world.carried.len(), 1);
    assert_eq!((world.carried[0].fire_id, world.carried[0].attempt.get()), (fire_id, 1));
    let again = world.task(Command::Redrive { subject, fire_id });
    assert_eq!(again, Err(EngineError::NoLetter), "once");
    world.comes_back(Outcome::Acked);
    world.settle();
    let counts = world.counts();
    assert_eq!((counts.done, counts.dead, counts.dead_letters), (1, 0, 0));
    let history = ready(world.store.history(PARTITION, task.id, 9)).unwrap();
    assert_eq!(history.len(), 1, "one record per fire");
    assert_eq!(history[0].end, FireEnd::Done);
}

#[test]
fn a_letter_whose_key_names_another_task_now_is_not_redriven() {
    let mut world = World::new();
    let letter = one_dead(&mut world, named("order", secs(1)));
    world.schedule(named("order", secs(100)));
    let redrive = Command::Redrive { subject: key("order"), fire_id: letter.fire_id() };
    assert!(matches!(world.task(redrive), Err(EngineError::Exists(_))));
    assert_eq!(world.counts().dead_letters, 1);
}

#[test]
fn a_letter_is_deleted_once() {
    let mut world = World::new();
    let letter = one_dead(&mut world, once(secs(1)));
    let forget = || Command::Forget { namespace: shop(), fire_id: letter.fire_id() };
    let told = |told| matches!(told, punctual_engine::Reply::Forgotten).then_some(());
    let mut first = world.send(forget(), told);
    let mut second = world.send(forget(), told);
    world.settle();
    assert_eq!(first.try_recv().unwrap(), Ok(()));
    assert_eq!(second.try_recv().unwrap(), Err(EngineError::NoLetter));
    assert_eq!(world.counts().dead_letters, 0);
}

#[test]
fn what_is_on_its_way_at_most_once_is_no_letter_yet() {
    let mut world = World::new();
    let new_task = NewTask { guarantee: Guarantee::AtMostOnce, ..named("order", secs(1)) };
    let task = world.schedule(new_task);
    world.pass(secs(1));
    assert_eq!(world.carried.len(), 1);
    let redrive = Command::Redrive { subject: key("order"), fire_id: task.fire().id };
    assert_eq!(world.task(redrive), Err(EngineError::NoLetter), "it may still arrive");
    let pause = world.task(Command::Pause(id(&task)));
    assert!(matches!(pause, Err(EngineError::Firing(_))), "{pause:?}");
}

#[test]
fn what_was_certainly_not_sent_is_no_attempt_and_goes_out_again() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        let mut world = World::new();
        world.schedule(NewTask { guarantee, ..named("order", secs(1)) });
        world.pass(secs(1));
        world.returned();
        world.settle();
        assert_eq!(world.carried.len(), 1, "{guarantee:?}");
        assert_eq!(world.carried[0].attempt.get(), 1);
        world.comes_back(Outcome::Acked);
        world.settle();
        let counts = world.counts();
        assert_eq!((counts.done, counts.scheduled, counts.dead_letters), (1, 0, 0));
    }
}

#[test]
fn a_call_of_many_commands_is_answered_in_their_order() {
    let mut world = World::new();
    let order = |new_task: NewTask| {
        let condition = Condition::Always;
        Command::Schedule(punctual_engine::ScheduleCommand {
            new_task: new_task.into(),
            condition,
            receipt: None,
        })
    };
    let commands = vec![
        Command::Get(key("a")),
        order(named("a", secs(5))),
        order(once(secs(5))),
        Command::Touch(key("a"), to(secs(9))),
        Command::Get(key("a")),
        Command::Cancel(key("a")),
    ];
    let (call, mut answers) = punctual_engine::Call::new(commands);
    world.owner.on(punctual_engine::Event::Call(call), world.now);
    world.settle();
    let answers = answers.try_recv().unwrap();
    use punctual_engine::{Cancelled, Reply, Scheduled};
    assert_eq!(answers[0], Err(EngineError::NotFound));
    assert!(matches!(answers[1], Ok(Reply::Scheduled(Scheduled::Created(_)))));
    assert!(matches!(answers[2], Ok(Reply::Scheduled(Scheduled::Created(_)))));
    assert!(matches!(answers[3], Ok(Reply::Touched { .. })));
    assert!(matches!(&answers[4], Ok(Reply::Task(task)) if task.version == Version::new(2)));
    assert_eq!(answers[5], Ok(Reply::Cancelled(Cancelled::Cancelled)));
}

#[test]
fn a_store_that_is_away_is_asked_again_for_all_that_was_looked_for() {
    let mut world = World::new();
    world.schedule(named("a", secs(50)));
    world.weather = Weather::Away;
    let mut answer = world.send_touch(key("a"), to(secs(90)));
    world.pass(secs(1));
    assert!(answer.try_recv().is_err());
    world.weather = Weather::Fair;
    world.pass(secs(1));
    assert!(answer.try_recv().unwrap().is_ok());
}

#[test]
fn a_task_that_was_paused_on_its_way_and_not_sent_stays_paused() {
    let mut world = World::new();
    world.schedule(named("order", secs(1)));
    world.pass(secs(1));
    world.task(Command::Pause(key("order"))).unwrap();
    world.returned();
    world.pass(secs(60));
    assert!(world.carried.is_empty());
    world.task(Command::Resume(key("order"))).unwrap();
    assert_eq!(world.carried.len(), 1);
}

#[test]
fn an_unsent_task_whose_name_was_given_to_another_does_not_come_back() {
    for successor_is_over in [false, true] {
        let mut world = World::new();
        let at_most_once =
            |delay| NewTask { guarantee: Guarantee::AtMostOnce, ..named("order", delay) };
        world.schedule(at_most_once(secs(1)));
        world.pass(secs(1));
        let successor = world.schedule(named("order", secs(1)));
        if successor_is_over {
            world.pass(secs(1));
            world.comes_back_from(1, Outcome::Acked);
            world.settle();
        }
        world.returned();
        world.pass(secs(60));
        let sent: Vec<_> = world.carried.iter().map(|delivery| delivery.fire_id.task).collect();
        let want = if successor_is_over { vec![] } else { vec![successor.id] };
        assert_eq!(sent, want);
        assert_eq!(world.counts().dead_letters, 0);
    }
}

#[test]
fn a_task_fired_manually_fires_now_and_again_at_its_time() {
    let mut world = World::new();
    let task = world.schedule(named("order", secs(600)));
    let besides = world.task(Command::Fire(key("order"))).unwrap();
    assert_eq!(besides.fire_at, world.now);
    assert_eq!(world.carried.len(), 1);
    assert_ne!(world.carried[0].fire_id, task.fire().id, "another fire of the same task");
    assert!(matches!(world.task(Command::Fire(key("order"))), Err(EngineError::Firing(_))));
    world.crash();
    world.settle();
    assert_eq!(world.carried.len(), 1, "a crash forgets neither");
    world.comes_back(Outcome::Acked);
    world.pass(millis(599_999));
    assert!(world.carried.is_empty());
    world.pass(millis(1));
    assert_eq!(world.carried.len(), 1);
    assert_eq!(world.carried[0].fire_id, task.fire().id);
    world.comes_back(Outcome::Acked);
    world.settle();
    assert_eq!(world.counts().done, 1);
    let history = ready(world.store.history(PARTITION, task.id, 9)).unwrap();
    assert_eq!(history.len(), 2);
}

#[test]
fn a_fire_besides_the_schedule_that_dies_leaves_the_schedule_alone_and_is_redriven_on_its_own() {
    let mut world = World::new();
    let task = world.schedule(named("order", secs(600)));
    world.task(Command::Fire(key("order"))).unwrap();
    world.comes_back(Outcome::Refused { reason: punctual_core::Reason::new("no") });
    world.settle();
    let letter = ready(world.store.dead(PARTITION, &shop(), None, 9)).unwrap().items.remove(0);
    let redrive = Command::Redrive { subject: key("order"), fire_id: letter.fire_id() };
    let alone = world.task(redrive).unwrap();
    assert_ne!(alone.id, task.id);
    assert_eq!(alone.definition.key, None);
    world.comes_back(Outcome::Acked);
    world.pass(secs(600));
    assert_eq!(world.carried.len(), 1);
    assert_eq!(world.carried[0].fire_id, task.fire().id);
    world.comes_back(Outcome::Acked);
    world.settle();
    let counts = world.counts();
    assert_eq!((counts.done, counts.dead, counts.dead_letters), (2, 0, 0));
}

#[test]
fn a_waiting_retry_that_is_fired_is_made_now() {
    let mut world = World::new();
    world.schedule(named("order", secs(1)));
    world.pass(secs(1));
    let first = world.comes_back(failed());
    world.settle();
    world.task(Command::Fire(key("order"))).unwrap();
    assert_eq!(world.carried.len(), 1);
    assert_eq!((world.carried[0].fire_id, world.carried[0].attempt.get()), (first.fire_id, 2));
}

#[test]
fn what_cannot_be_fired_manually_says_why() {
    let mut world = World::new();
    assert_eq!(world.task(Command::Fire(key("a"))), Err(EngineError::NotFound));
    world.schedule(named("a", secs(50)));
    world.task(Command::Pause(key("a"))).unwrap();
    assert_eq!(world.task(Command::Fire(key("a"))), Err(EngineError::Paused));
}

#[test]
fn what_may_be_received_at_most_once_can_be_fired_manually_too() {
    let order = || NewTask { guarantee: Guarantee::AtMostOnce, ..named("order", secs(600)) };
    let mut world = World::new();
    let task = world.schedule(order());
    world.task(Command::Fire(key("order"))).unwrap();
    let besides = world.carried[0].fire_id;
    assert_ne!(besides, task.fire().id, "another fire of the same task");
    let letters =
        |world: &World| ready(world.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
    assert_eq!(letters(&world)[0].fire_id(), besides, "claimed before it was sent");
    assert!(matches!(world.task(Command::Fire(key("order"))), Err(EngineError::Firing(_))));
    world.crash();
    world.sent.clear();
    world.pass(secs(599));
    assert!(world.sent.is_empty(), "never a second time");
    world.pass(secs(1));
    assert_eq!(world.sent.len(), 1);
    assert_eq!(world.sent[0].fire_id, task.fire().id, "its own time is not forgotten");
    world.comes_back(Outcome::Acked);
    world.settle();
    let letters = letters(&world);
    assert_eq!((letters.len(), letters[0].fire_id()), (1, besides));
    let counts = world.counts();
    assert_eq!((counts.done, counts.scheduled), (1, 0));

    // With a known outcome nothing is left of the claim.
    let mut world = World::new();
    world.schedule(order());
    world.task(Command::Fire(key("order"))).unwrap();
    world.comes_back(Outcome::Acked);
    world.settle();
    let counts = world.counts();
    assert_eq!((counts.scheduled, counts.dead_letters), (1, 0));
    world.task(Command::Fire(key("order"))).unwrap();
    world.comes_back(Outcome::Refused { reason: punctual_core::Reason::new("no") });
    world.settle();
    let counts = world.counts();
    assert_eq!((counts.scheduled, counts.dead_letters), (1, 1));
    world.pass(secs(600));
    assert_eq!(world.carried.len(), 1);
}

#[test]
fn an_idempotency_key_that_is_bound_stands_for_nothing_else_for_a_day() {
    use punctual_engine::{Receipt, Reply, ScheduleCommand, Scheduled};
    let receipt = |digest: &str| {
        let key = punctual_core::TaskKey::new("idempotency").unwrap();
        Receipt { key, digest: digest.to_owned() }
    };
    let bind = |world: &mut World, digest: &str| {
        let command = Command::Bind(once(secs(1)).namespace, receipt(digest));
        let mut answer = world.send(command, |told| (told == Reply::Bound).then_some(()));
        world.settle();
        answer.try_recv().unwrap()
    };
    let mut world = World::new();
    assert_eq!(bind(&mut world, "named"), Ok(()));
    assert_eq!(bind(&mut world, "named"), Ok(()), "again");
    assert_eq!(bind(&mut world, "other"), Err(EngineError::OtherOrder));
    world.crash();
    assert_eq!(bind(&mut world, "named"), Ok(()), "after a crash");
    assert_eq!(bind(&mut world, "other"), Err(EngineError::OtherOrder));
    // A task without a name has its receipt in the same place.
    let (new_task, condition) = (once(secs(1)).into(), Condition::Always);
    let order = ScheduleCommand { new_task, condition, receipt: Some(receipt("nameless")) };
    let mut answer = world.send(Command::Schedule(order), |told| match told {
        Reply::Scheduled(scheduled) => Some(scheduled),
        _ => None,
    });
    world.settle();
    let refused: Result<Scheduled, _> = answer.try_recv().unwrap();
    assert_eq!(refused, Err(EngineError::OtherOrder));
    assert_eq!(world.counts().accepted(), 0, "it is nobody's task");
    world.pass(secs(86_400));
    assert!(world.carried.is_empty(), "nor is it sent");
    assert_eq!(bind(&mut world, "other"), Ok(()), "and it is forgotten");
}

#[test]
fn a_task_is_created_once_under_an_idempotency_key_even_after_it_has_fired() {
    use punctual_engine::{Receipt, Reply, ScheduleCommand, Scheduled};
    for name in [None, Some("order")] {
        let mut world = World::new();
        let ask = |world: &mut World, digest: &str| {
            let new_task = match name {
                Some(name) => named(name, secs(1)),
                None => once(secs(1)),
            };
            let key = punctual_core::TaskKey::new("idempotency").unwrap();
            let receipt = Some(Receipt { key, digest: digest.to_owned() });
            let (new_task, condition) = (new_task.into(), Condition::Always);
            let order = ScheduleCommand { new_task, condition, receipt };
            let mut answer = world.send(Command::Schedule(order), |told| match told {
                Reply::Scheduled(scheduled) => Some(scheduled),
                _ => None,
            });
            world.settle();
            answer.try_recv().unwrap()
        };
        let Ok(Scheduled::Created(first)) = ask(&mut world, "same") else { panic!() };
        assert_eq!(ask(&mut world, "same"), Ok(Scheduled::Created(first.clone())));
        assert_eq!(ask(&mut world, "other"), Err(EngineError::OtherOrder));
        world.pass(secs(1));
        assert_eq!(world.carried.len(), 1, "created once");
        world.comes_back(Outcome::Acked);
        world.settle();
        world.crash();
        assert_eq!(ask(&mut world, "same"), Ok(Scheduled::Created(first.clone())));
        world.pass(secs(60));
        assert!(world.carried.is_empty());
        assert_eq!(world.counts().accepted(), 1, "a receipt is nobody's task");
        // A day later it is forgotten, without having been sent to anybody.
        world.pass(secs(86_400));
        assert!(world.carried.is_empty());
        let Ok(Scheduled::Created(second)) = ask(&mut world, "same") else { panic!() };
        assert_ne!(second.id, first.id);
    }
}
