//! The life of a task in an owner, as sentences. Time is moved, not slept.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod world;

use punctual_core::{
    Backoff, DeadReason, FireEnd, Guarantee, Jitter, Outcome, RetryPolicy, TaskState, Version,
};
use punctual_engine::{Action, Cancelled, Condition, EngineError, Scheduled, Subject};
use punctual_store::{Resource, TaskStore};
use world::{Weather, World, failed, id, key, millis, named, once, ready, secs, shop};

const PARTITION: punctual_core::PartitionId = punctual_core::PartitionId::FIRST;

fn two_attempts() -> RetryPolicy {
    let backoff = Backoff::Fixed(secs(10));
    RetryPolicy { attempts_max: 2, backoff, jitter: Jitter::default() }
}

#[test]
fn a_task_fires_at_its_time_and_not_a_millisecond_before() {
    let mut world = World::new();
    let task = world.schedule(once(millis(1500)));
    world.pass(millis(1499));
    assert!(world.carried.is_empty());
    world.pass(millis(1));
    assert_eq!(world.carried.len(), 1);
    assert_eq!(world.carried[0].fire_id, task.fire().id);
    assert_eq!(world.carried[0].fired_at, task.fire_at);
}

#[test]
fn nothing_is_answered_before_it_is_durable() {
    let mut world = World::new();
    world.settle();
    let mut answer = world.send_schedule(once(secs(1)), Condition::Always);
    assert!(answer.try_recv().is_err());
    world.settle();
    assert!(matches!(answer.try_recv(), Ok(Ok(Scheduled::Created(_)))));
}

#[test]
fn an_acked_task_is_done_and_leaves_memory_and_store() {
    let mut world = World::new();
    let task = world.schedule(once(secs(1)));
    world.pass(secs(1));
    world.comes_back(Outcome::Acked);
    world.settle();
    assert_eq!(world.owner.loaded(), 0);
    assert_eq!((world.counts().done, world.counts().scheduled), (1, 0));
    let history = ready(world.store.history(PARTITION, task.id, 9)).unwrap();
    assert_eq!(history[0].end, FireEnd::Done);
    assert_eq!(history[0].lag(), Some(millis(0)));
}

#[test]
fn a_failed_attempt_is_made_again_after_its_backoff_under_the_same_fire_id() {
    let mut world = World::new();
    world.schedule(once(secs(1)));
    world.pass(secs(1));
    let first = world.comes_back(failed());
    world.pass(millis(999));
    assert!(world.carried.is_empty());
    world.pass(millis(101));
    assert_eq!(world.carried.len(), 1);
    assert_eq!(world.carried[0].fire_id, first.fire_id);
    assert_eq!(world.carried[0].attempt.get(), 2);
}

#[test]
fn a_fire_without_an_attempt_left_becomes_a_dead_letter_with_all_its_attempts() {
    let mut world = World::new();
    world.schedule(punctual_core::NewTask { retry: two_attempts(), ..once(secs(1)) });
    world.pass(secs(1));
    world.comes_back(failed());
    world.pass(secs(10));
    world.comes_back(Outcome::Expired);
    world.settle();
    let dead = ready(world.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].reason, DeadReason::Exhausted);
    assert_eq!(dead[0].task.attempts.len(), 2);
    assert_eq!((world.counts().dead, world.counts().scheduled), (1, 0));
}

#[test]
fn a_fire_past_its_expiry_is_not_sent() {
    let mut world = World::new();
    let expires_after = Some(secs(5));
    world.schedule(punctual_core::NewTask { expires_after, ..once(secs(1)) });
    world.settle();
    world.now = world.now.after(secs(7));
    world.settle();
    assert!(world.carried.is_empty());
    let dead = ready(world.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
    assert_eq!(dead[0].reason, DeadReason::Expired);
}

#[test]
fn a_far_task_is_not_held_in_memory_until_it_comes_near() {
    let mut world = World::new();
    world.schedule(once(secs(3600)));
    assert_eq!(world.owner.loaded(), 0);
    world.pass(secs(3599));
    assert_eq!(world.owner.loaded(), 1);
    world.pass(secs(1));
    assert_eq!(world.carried.len(), 1);
}

#[test]
fn tasks_fire_in_the_order_of_their_times_whatever_the_number() {
    let mut world = World::new();
    for n in (0..10_000u64).rev() {
        let mut new_task = once(millis(n * 7 % 10_000));
        new_task.labels = punctual_core::Labels::default();
        drop(world.send_schedule(new_task, Condition::Always));
    }
    let mut received = Vec::new();
    for _ in 0..10_001 {
        world.settle();
        while !world.carried.is_empty() {
            received.push(world.comes_back(Outcome::Acked));
            world.settle();
        }
        world.now = world.now.after(millis(1));
    }
    assert_eq!(received.len(), 10_000);
    assert!(received.is_sorted_by_key(|delivery| delivery.fire_at));
    assert!(received.iter().all(|delivery| delivery.fired_at >= delivery.fire_at));
    assert_eq!(world.counts().done, 10_000);
}

#[test]
fn a_cancelled_task_never_fires() {
    let mut world = World::new();
    world.schedule(named("order", secs(1)));
    assert_eq!(world.cancel(key("order")), Ok(Cancelled::Cancelled));
    assert_eq!(world.cancel(key("order")), Err(EngineError::NotFound));
    world.pass(secs(60));
    assert!(world.carried.is_empty());
    assert_eq!(world.counts().cancelled, 1);
}

#[test]
fn a_task_that_comes_due_while_its_cancellation_is_being_written_does_not_fire() {
    let mut world = World::new();
    world.schedule(named("order", millis(5)));
    let mut answer = world.send_cancel(key("order"));
    world.perform(0);
    assert!(answer.try_recv().is_err(), "decided, not durable");
    world.now = world.now.after(millis(50));
    world.act();
    assert!(world.carried.is_empty());
    world.settle();
    assert_eq!(answer.try_recv().unwrap(), Ok(Cancelled::Cancelled));
    assert!(world.carried.is_empty());
}

#[test]
fn cancelling_a_task_that_is_firing_or_has_fired_says_so() {
    let mut world = World::new();
    let task = world.schedule(once(secs(1)));
    world.pass(secs(1));
    let subject = id(&task);
    assert!(matches!(world.cancel(subject.clone()), Ok(Cancelled::Firing(n)) if n.get() == 1));
    world.comes_back(Outcome::Acked);
    assert_eq!(world.cancel(subject), Ok(Cancelled::AlreadyFired(task.fire_at)));
}

#[test]
fn a_cancel_that_crosses_the_settlement_of_its_task_waits_for_the_truth() {
    let mut world = World::new();
    let task = world.schedule(once(millis(5)));
    world.pass(millis(5));
    let mut answer = world.send_cancel(id(&task));
    // The look has read the living task; before it is heard of, the task is done.
    world.comes_back(Outcome::Acked);
    world.perform(0);
    world.settle();
    assert_eq!(answer.try_recv().unwrap(), Ok(Cancelled::AlreadyFired(task.fire_at)));
}

#[test]
fn a_waiting_retry_can_be_cancelled() {
    let mut world = World::new();
    world.schedule(named("order", secs(1)));
    world.pass(secs(1));
    world.comes_back(failed());
    world.settle();
    assert_eq!(world.cancel(key("order")), Ok(Cancelled::Cancelled));
    world.pass(secs(60));
    assert!(world.carried.is_empty());
}

#[test]
fn a_replaced_task_fires_once_by_its_new_definition() {
    let mut world = World::new();
    let old = world.schedule(named("order", secs(1)));
    let new = world.schedule(named("order", secs(2)));
    assert_eq!(new.version, Version::FIRST.next());
    assert_ne!(new.id, old.id);
    world.pass(secs(60));
    assert_eq!(world.carried.len(), 1);
    assert_eq!(world.carried[0].fire_id.task, new.id);
    assert_eq!(world.counts().accepted(), 1);
}

#[test]
fn a_task_replaced_while_it_fires_is_not_tried_again() {
    let mut world = World::new();
    world.schedule(named("order", secs(1)));
    world.pass(secs(1));
    let new = world.schedule(named("order", secs(100)));
    world.comes_back(failed());
    world.pass(secs(99));
    assert!(world.carried.is_empty(), "the old one is over");
    world.pass(secs(1));
    assert_eq!(world.carried.len(), 1);
    assert_eq!(world.carried[0].fire_id.task, new.id);
}

#[test]
fn conditions_are_kept() {
    let mut world = World::new();
    let mut ask = |condition| {
        let mut answer = world.send_schedule(named("order", secs(100)), condition);
        world.settle();
        answer.try_recv().unwrap()
    };
    let other = Condition::Version(Version::new(7));
    assert_eq!(ask(other), Err(EngineError::NotFound));
    assert!(matches!(ask(Condition::Absent), Ok(Scheduled::Created(_))));
    assert!(matches!(ask(Condition::Absent), Err(EngineError::Exists(_))));
    assert_eq!(ask(other), Err(EngineError::OtherVersion(Version::FIRST)));
    let same = Condition::Version(Version::FIRST);
    assert!(matches!(ask(same), Ok(Scheduled::Replaced(_))));
    assert_eq!(ask(same), Err(EngineError::OtherVersion(Version::new(2))));
}

#[test]
fn commands_about_one_key_are_decided_in_their_order() {
    let mut world = World::new();
    let mut first = world.send_schedule(named("order", secs(9)), Condition::Absent);
    let mut cancel = world.send_cancel(key("order"));
    let mut second = world.send_schedule(named("order", secs(9)), Condition::Absent);
    world.settle();
    assert!(matches!(first.try_recv(), Ok(Ok(Scheduled::Created(_)))));
    assert_eq!(cancel.try_recv().unwrap(), Ok(Cancelled::Cancelled));
    assert!(matches!(second.try_recv(), Ok(Ok(Scheduled::Created(_)))));
}

#[test]
fn a_task_of_another_namespace_is_not_there() {
    let mut world = World::new();
    let task = world.schedule(once(secs(9)));
    let other = punctual_core::Namespace::new("other").unwrap();
    assert_eq!(world.get(Subject::Id(other, task.id)), Err(EngineError::NotFound));
    assert_eq!(world.get(id(&task)).unwrap().state, TaskState::Scheduled);
    world.pass(secs(9));
    assert_eq!(world.get(id(&task)).unwrap().state, TaskState::Firing);
}

#[test]
fn at_most_once_is_claimed_durably_before_it_is_sent() {
    let mut world = World::new();
    let guarantee = Guarantee::AtMostOnce;
    world.schedule(punctual_core::NewTask { guarantee, ..named("order", secs(1)) });
    world.now = world.now.after(secs(1));
    world.act();
    assert!(world.carried.is_empty(), "the claim is on its way");
    world.settle();
    assert_eq!(world.carried.len(), 1);
    assert!(matches!(world.cancel(key("order")), Ok(Cancelled::Firing(_))));
    assert_eq!(world.get(key("order")).unwrap().state, TaskState::Firing, "not dead yet");
    world.crash();
    world.pass(secs(60));
    assert!(world.carried.is_empty(), "never a second time");
    let dead = ready(world.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
    assert_eq!(dead[0].reason, DeadReason::Unknown);
}

#[test]
fn at_most_once_with_a_known_outcome_leaves_no_letter_behind() {
    for (outcome, done, reason) in [
        (Outcome::Acked, 1, None),
        (failed(), 0, Some(DeadReason::Exhausted)),
        (Outcome::Expired, 0, Some(DeadReason::Unknown)),
    ] {
        let mut world = World::new();
        let guarantee = Guarantee::AtMostOnce;
        world.schedule(punctual_core::NewTask { guarantee, ..once(secs(1)) });
        world.pass(secs(1));
        let delivery = world.comes_back(outcome);
        world.pass(secs(60));
        assert!(world.carried.is_empty());
        let counts = world.counts();
        assert_eq!((counts.done, counts.dead), (done, 1 - done));
        assert_eq!((counts.scheduled, counts.dead_letters), (0, 1 - done));
        let dead = ready(world.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
        assert_eq!(dead.first().map(|letter| letter.reason), reason);
        let history = ready(world.store.history(PARTITION, delivery.fire_id.task, 9)).unwrap();
        assert_eq!(history.len(), 1, "one record per fire");
        assert_eq!(history[0].attempts.len(), 1);
    }
}

#[test]
fn after_a_crash_what_was_not_settled_fires_again_under_the_same_fire_id() {
    let mut world = World::new();
    world.schedule(once(secs(1)));
    world.pass(secs(1));
    let lost = world.carried[0].fire_id;
    world.crash();
    world.settle();
    assert_eq!(world.carried.len(), 1);
    assert_eq!(world.carried[0].fire_id, lost);
}

#[test]
fn a_batch_whose_answer_was_lost_is_made_once() {
    let mut world = World::new();
    world.settle();
    world.weather = Weather::AnswerLost;
    let mut answer = world.send_schedule(once(secs(5)), Condition::Always);
    world.settle();
    assert!(answer.try_recv().is_err(), "nobody knows yet");
    world.weather = Weather::Fair;
    world.pass(secs(1));
    assert!(matches!(answer.try_recv(), Ok(Ok(Scheduled::Created(_)))));
    assert_eq!(world.counts().accepted(), 1);
    world.pass(secs(5));
    assert_eq!(world.carried.len(), 1);
}

#[test]
fn while_the_store_is_away_calls_are_refused_at_once_and_nothing_is_done() {
    let mut world = World::new();
    world.settle();
    world.weather = Weather::Away;
    let mut first = world.send_schedule(once(secs(5)), Condition::Always);
    world.settle();
    assert!(first.try_recv().is_err(), "it is with the store, as far as anybody knows");
    let mut second = world.send_schedule(once(secs(5)), Condition::Always);
    assert_eq!(second.try_recv().unwrap(), Err(EngineError::Away));
    world.weather = Weather::Fair;
    world.pass(secs(1));
    assert!(matches!(first.try_recv(), Ok(Ok(Scheduled::Created(_)))));
    world.schedule(once(secs(5)));
    assert_eq!(world.counts().accepted(), 2);
}

#[test]
fn while_the_store_is_away_loaded_tasks_go_on_firing() {
    let mut world = World::new();
    world.schedule(once(secs(5)));
    world.weather = Weather::Away;
    world.pass(secs(5));
    assert_eq!(world.carried.len(), 1);
    world.comes_back(Outcome::Acked);
    world.pass(secs(5));
    world.weather = Weather::Fair;
    world.pass(secs(1));
    assert_eq!(world.counts().done, 1);
}

#[test]
fn a_full_store_refuses_new_tasks_and_goes_on_with_the_rest() {
    for room in [Resource::Disk, Resource::Memory] {
        let mut world = World::new();
        world.schedule(named("order", secs(5)));
        (world.weather, world.lacks) = (Weather::Full, room);
        let mut created = world.send_schedule(once(secs(5)), Condition::Always);
        let mut replaced = world.send_schedule(named("order", secs(9)), Condition::Always);
        world.settle();
        assert_eq!(created.try_recv().unwrap(), Err(EngineError::Full(room)));
        assert_eq!(replaced.try_recv().unwrap(), Err(EngineError::Full(room)));
        world.weather = Weather::Fair;
        world.pass(secs(5));
        assert_eq!(world.carried.len(), 1, "the one that was there");
        assert_eq!(world.counts().accepted(), 1);
    }
}

#[test]
fn what_makes_no_task_waits_for_nobody_who_is_refused() {
    let mut world = World::new();
    world.schedule(named("paid", secs(5)));
    world.weather = Weather::Filled;
    let mut created = world.send_schedule(once(secs(5)), Condition::Always);
    let mut cancelled = world.send_cancel(key("paid"));
    world.settle();
    assert_eq!(created.try_recv().unwrap(), Err(EngineError::Full(Resource::Disk)));
    assert!(cancelled.try_recv().unwrap().is_ok(), "no time has passed");
    assert_eq!((world.counts().cancelled, world.counts().scheduled), (1, 0));
}

#[test]
fn a_task_loaded_while_its_replacement_was_on_its_way_fires_if_that_is_refused() {
    let mut world = World::new();
    world.schedule(named("order", secs(5)));
    world.crash();
    // The replacement is decided before the first page is read, and refused after.
    let mut replaced = world.send_schedule(named("order", secs(9)), Condition::Always);
    let look = world.wanted.iter().position(|action| matches!(action, Action::Lookup(_))).unwrap();
    world.perform(look);
    let load = world.wanted.iter().position(|action| matches!(action, Action::Load { .. }));
    world.perform(load.unwrap());
    world.weather = Weather::Full;
    world.settle();
    assert_eq!(replaced.try_recv().unwrap(), Err(EngineError::Full(Resource::Disk)));
    world.weather = Weather::Fair;
    world.pass(secs(5));
    assert_eq!(world.carried.len(), 1);
}

#[test]
fn an_outcome_that_came_while_a_replacement_was_on_its_way_counts_if_that_is_refused() {
    let mut world = World::new();
    world.schedule(named("order", secs(1)));
    world.pass(secs(1));
    let mut replaced = world.send_schedule(named("order", secs(9)), Condition::Always);
    world.perform(0);
    world.comes_back(Outcome::Acked);
    world.weather = Weather::Full;
    world.settle();
    assert_eq!(replaced.try_recv().unwrap(), Err(EngineError::Full(Resource::Disk)));
    world.weather = Weather::Fair;
    world.pass(secs(5));
    assert_eq!((world.counts().done, world.counts().scheduled), (1, 0));
}

#[test]
fn history_is_swept_when_its_retention_is_over_and_not_before() {
    let mut world = World::new();
    let task = world.schedule(once(secs(1)));
    world.pass(secs(1));
    world.comes_back(Outcome::Acked);
    let records = |world: &World| ready(world.store.history(PARTITION, task.id, 9)).unwrap().len();
    world.pass(secs(6 * 86_400));
    assert_eq!(records(&world), 1);
    world.pass(secs(2 * 86_400));
    assert_eq!(records(&world), 0);
}

#[test]
fn large_tasks_that_come_together_are_written_in_batches_that_a_store_can_take() {
    let mut world = World::new();
    world.settle();
    let payload = punctual_core::Payload::Json(vec![b' '; 256 * 1024].into());
    let mut answers: Vec<_> = (0..100)
        .map(|_| {
            let new_task = punctual_core::NewTask { payload: payload.clone(), ..once(secs(9)) };
            world.send_schedule(new_task, Condition::Always)
        })
        .collect();
    let mut batches = 0;
    while let Some(Action::Apply(batch)) = world.wanted.first() {
        let weight: usize = batch.changes.iter().map(|change| change.weight()).sum();
        assert!(weight <= punctual_store::Batch::WEIGHT_MAX, "{weight}");
        batches += 1;
        world.perform(0);
    }
    assert!(batches >= 7, "{batches}");
    for answer in &mut answers {
        assert!(matches!(answer.try_recv(), Ok(Ok(Scheduled::Created(_)))));
    }
}

#[test]
fn a_fenced_owner_stops_and_refuses_everything() {
    let mut world = World::new();
    world.settle();
    let mut answer = world.send_schedule(once(secs(5)), Condition::Always);
    // Somebody else takes the partition; our batch carries the old epoch.
    let old = world.ownership.epoch;
    let mine = std::mem::replace(&mut world.owner, World::new().owner);
    let wanted = std::mem::take(&mut world.wanted);
    world.crash();
    (world.owner, world.wanted, world.ownership.epoch) = (mine, wanted, old);
    world.settle();
    assert!(world.stopped.is_some());
    assert_eq!(answer.try_recv().unwrap(), Err(EngineError::Stopped), "nothing was done");
    let mut refused = world.send_schedule(once(secs(5)), Condition::Always);
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped));
}

#[test]
fn a_task_filed_while_its_page_is_being_read_fires_once() {
    let mut world = World::new();
    // The first page is wanted and not read yet; a near task is filed and settled meanwhile.
    world.act();
    assert_eq!(world.wanted.len(), 1);
    let answer = world.send_schedule(once(millis(5)), Condition::Always);
    world.perform(1);
    drop(answer);
    world.now = world.now.after(millis(5));
    world.act();
    assert_eq!(world.carried.len(), 1, "held in memory before the page came");
    world.perform(0);
    world.pass(secs(1));
    assert_eq!(world.carried.len(), 1, "and not again because of it");
}

#[test]
fn a_slow_receiver_holds_up_its_own_lane_only() {
    let mut world = World::new();
    for _ in 0..1000 {
        drop(world.send_schedule(once(secs(1)), Condition::Always));
    }
    let quick = punctual_core::Queue::new("quick").unwrap();
    let target = punctual_core::Target::Queue(quick.clone());
    world.schedule(punctual_core::NewTask { target, ..once(secs(1)) });
    world.pass(secs(1));
    let to_quick = world.carried.iter().filter(|delivery| {
        delivery.definition.target == punctual_core::Target::Queue(quick.clone())
    });
    assert_eq!(to_quick.count(), 1);
    let slow = world.carried.len() - 1;
    assert!((1..1000).contains(&slow), "{slow} under way at once");
    while !world.carried.is_empty() {
        world.comes_back(Outcome::Acked);
        world.settle();
    }
    assert_eq!(world.counts().done, 1001, "all in the end");
}

#[test]
fn draining_starts_nothing_and_waits_for_what_is_under_way() {
    let mut world = World::new();
    world.schedule(once(secs(1)));
    world.schedule(once(secs(2)));
    world.pass(secs(1));
    world.owner.on(punctual_engine::Event::Drain, world.now);
    world.pass(secs(5));
    assert_eq!(world.carried.len(), 1);
    assert!(!world.owner.is_quiet());
    world.comes_back(Outcome::Acked);
    world.settle();
    assert!(world.owner.is_quiet());
    assert_eq!((world.counts().done, world.counts().scheduled), (1, 1));
}
