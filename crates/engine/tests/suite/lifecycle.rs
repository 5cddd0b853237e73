//! The life of a task: scheduled, fired, retried, done or dead, cancelled, replaced, and what a
//! crash or a fault of the store does to it.

use crate::fixture::{
    OwnerFixture, PARTITION, StoreFault, failed, id, key, keyed, millis, once, ready, secs, shop,
};
use punctual_core::{
    Backoff, DeadReason, FireEnd, Guarantee, Jitter, Outcome, RetryPolicy, TaskState, Version,
};
use punctual_engine::{Action, Cancelled, Condition, EngineError, Scheduled, Subject};
use punctual_store::{Resource, TaskStore};

fn two_attempts() -> RetryPolicy {
    let backoff = Backoff::Fixed(secs(10));
    RetryPolicy { attempts_max: 2, backoff, jitter: Jitter::default() }
}

#[test]
fn a_task_fires_at_its_time_and_not_a_millisecond_before() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(once(millis(1500)));
    fixture.advance(millis(1499));
    assert!(fixture.in_flight.is_empty());
    fixture.advance(millis(1));
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(fixture.in_flight[0].fire_id, task.fire().id);
    assert_eq!(fixture.in_flight[0].fired_at, task.fire_at);
}

#[test]
fn a_command_is_answered_only_when_it_is_durable() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    let mut answer = fixture.send_schedule(once(secs(1)), Condition::Always);
    assert!(answer.try_recv().is_err());
    fixture.run();
    assert!(matches!(answer.try_recv(), Ok(Ok(Scheduled::Created(_)))));
}

#[test]
fn an_acked_task_is_done_and_leaves_memory_and_store() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(once(secs(1)));
    fixture.advance(secs(1));
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(fixture.owner.loaded(), 0);
    assert_eq!((fixture.counts().done, fixture.counts().scheduled), (1, 0));
    let history = ready(fixture.store.history(PARTITION, task.id, 9)).unwrap();
    assert_eq!(history[0].end, FireEnd::Done);
    assert_eq!(history[0].lag(), Some(millis(0)));
}

#[test]
fn a_failed_attempt_is_retried_after_its_backoff_under_the_same_fire_id() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(once(secs(1)));
    fixture.advance(secs(1));
    let first = fixture.report(failed());
    fixture.advance(millis(999));
    assert!(fixture.in_flight.is_empty());
    fixture.advance(millis(101));
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(fixture.in_flight[0].fire_id, first.fire_id);
    assert_eq!(fixture.in_flight[0].attempt.get(), 2);
}

#[test]
fn a_fire_without_an_attempt_left_becomes_a_dead_letter_with_all_its_attempts() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(punctual_core::NewTask { retry: two_attempts(), ..once(secs(1)) });
    fixture.advance(secs(1));
    fixture.report(failed());
    fixture.advance(secs(10));
    fixture.report(Outcome::Expired);
    fixture.run();
    let dead = ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].reason, DeadReason::Exhausted);
    assert_eq!(dead[0].task.attempts.len(), 2);
    assert_eq!((fixture.counts().dead, fixture.counts().scheduled), (1, 0));
}

#[test]
fn a_fire_past_its_expiry_is_not_sent() {
    let mut fixture = OwnerFixture::new();
    let expires_after = Some(secs(5));
    fixture.schedule(punctual_core::NewTask { expires_after, ..once(secs(1)) });
    fixture.run();
    fixture.now = fixture.now.after(secs(7));
    fixture.run();
    assert!(fixture.in_flight.is_empty());
    let dead = ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
    assert_eq!(dead[0].reason, DeadReason::Expired);
}

#[test]
fn a_task_far_ahead_is_loaded_only_shortly_before_it_is_due() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(once(secs(3600)));
    assert_eq!(fixture.owner.loaded(), 0);
    fixture.advance(secs(3599));
    assert_eq!(fixture.owner.loaded(), 1);
    fixture.advance(secs(1));
    assert_eq!(fixture.in_flight.len(), 1);
}

#[test]
fn ten_thousand_tasks_fire_in_the_order_of_their_times() {
    let mut fixture = OwnerFixture::new();
    for n in (0..10_000u64).rev() {
        let mut new_task = once(millis(n * 7 % 10_000));
        new_task.labels = punctual_core::Labels::default();
        drop(fixture.send_schedule(new_task, Condition::Always));
    }
    let mut received = Vec::new();
    for _ in 0..10_001 {
        fixture.run();
        while !fixture.in_flight.is_empty() {
            received.push(fixture.report(Outcome::Acked));
            fixture.run();
        }
        fixture.now = fixture.now.after(millis(1));
    }
    assert_eq!(received.len(), 10_000);
    assert!(received.is_sorted_by_key(|delivery| delivery.fire_at));
    assert!(received.iter().all(|delivery| delivery.fired_at >= delivery.fire_at));
    assert_eq!(fixture.counts().done, 10_000);
}

#[test]
fn a_cancelled_task_never_fires() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(1)));
    assert_eq!(fixture.cancel(key("order")), Ok(Cancelled::Cancelled));
    assert_eq!(fixture.cancel(key("order")), Ok(Cancelled::Cancelled));
    assert_eq!(fixture.cancel(key("other")), Err(EngineError::NotFound));
    fixture.advance(secs(60));
    assert!(fixture.in_flight.is_empty());
    assert_eq!(fixture.counts().cancelled, 1);
}

#[test]
fn a_task_that_becomes_due_while_its_cancellation_is_written_does_not_fire() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", millis(5)));
    let mut answer = fixture.send_cancel(key("order"));
    fixture.perform(0);
    assert!(answer.try_recv().is_err(), "decided, not durable");
    fixture.now = fixture.now.after(millis(50));
    fixture.act();
    assert!(fixture.in_flight.is_empty());
    fixture.run();
    assert_eq!(answer.try_recv().unwrap(), Ok(Cancelled::Cancelled));
    assert!(fixture.in_flight.is_empty());
}

#[test]
fn cancelling_a_task_that_is_firing_or_has_fired_says_so() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(once(secs(1)));
    fixture.advance(secs(1));
    let subject = id(&task);
    assert!(matches!(fixture.cancel(subject.clone()), Ok(Cancelled::Firing(n)) if n.get() == 1));
    fixture.report(Outcome::Acked);
    assert_eq!(fixture.cancel(subject), Ok(Cancelled::AlreadyFired(task.fire_at)));
}

#[test]
fn a_cancel_that_races_with_the_outcome_of_its_task_gets_the_final_state() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(once(millis(5)));
    fixture.advance(millis(5));
    let mut answer = fixture.send_cancel(id(&task));
    // The lookup has read the task; before its result is used, the task is done.
    fixture.report(Outcome::Acked);
    fixture.perform(0);
    fixture.run();
    assert_eq!(answer.try_recv().unwrap(), Ok(Cancelled::AlreadyFired(task.fire_at)));
}

#[test]
fn a_pending_retry_can_be_cancelled() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(1)));
    fixture.advance(secs(1));
    fixture.report(failed());
    fixture.run();
    assert_eq!(fixture.cancel(key("order")), Ok(Cancelled::Cancelled));
    fixture.advance(secs(60));
    assert!(fixture.in_flight.is_empty());
}

#[test]
fn a_replaced_task_fires_once_by_its_new_definition() {
    let mut fixture = OwnerFixture::new();
    let old = fixture.schedule(keyed("order", secs(1)));
    let new = fixture.schedule(keyed("order", secs(2)));
    assert_eq!(new.version, Version::FIRST.next());
    assert_ne!(new.id, old.id);
    fixture.advance(secs(60));
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(fixture.in_flight[0].fire_id.task, new.id);
    assert_eq!(fixture.counts().accepted(), 1);
}

#[test]
fn a_task_replaced_in_flight_is_not_retried() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(1)));
    fixture.advance(secs(1));
    let new = fixture.schedule(keyed("order", secs(100)));
    fixture.report(failed());
    fixture.advance(secs(99));
    assert!(fixture.in_flight.is_empty(), "the old one is over");
    fixture.advance(secs(1));
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(fixture.in_flight[0].fire_id.task, new.id);
}

#[test]
fn a_schedule_command_checks_its_condition() {
    let mut fixture = OwnerFixture::new();
    let mut schedule = |condition| {
        let mut answer = fixture.send_schedule(keyed("order", secs(100)), condition);
        fixture.run();
        answer.try_recv().unwrap()
    };
    let other = Condition::Version(Version::new(7));
    assert_eq!(schedule(other), Err(EngineError::NotFound));
    assert!(matches!(schedule(Condition::Absent), Ok(Scheduled::Created(_))));
    assert!(matches!(schedule(Condition::Absent), Err(EngineError::Exists(_))));
    assert_eq!(schedule(other), Err(EngineError::VersionMismatch(Version::FIRST)));
    let same = Condition::Version(Version::FIRST);
    assert!(matches!(schedule(same), Ok(Scheduled::Replaced(_))));
    assert_eq!(schedule(same), Err(EngineError::VersionMismatch(Version::new(2))));
}

#[test]
fn commands_about_one_key_are_decided_in_order() {
    let mut fixture = OwnerFixture::new();
    let mut first = fixture.send_schedule(keyed("order", secs(9)), Condition::Absent);
    let mut cancel = fixture.send_cancel(key("order"));
    let mut second = fixture.send_schedule(keyed("order", secs(9)), Condition::Absent);
    fixture.run();
    assert!(matches!(first.try_recv(), Ok(Ok(Scheduled::Created(_)))));
    assert_eq!(cancel.try_recv().unwrap(), Ok(Cancelled::Cancelled));
    assert!(matches!(second.try_recv(), Ok(Ok(Scheduled::Created(_)))));
}

#[test]
fn a_task_of_another_namespace_is_not_found() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(once(secs(9)));
    let other = punctual_core::Namespace::new("other").unwrap();
    assert_eq!(fixture.get(Subject::Id(other, task.id)), Err(EngineError::NotFound));
    assert_eq!(fixture.get(id(&task)).unwrap().state, TaskState::Scheduled);
    fixture.advance(secs(9));
    assert_eq!(fixture.get(id(&task)).unwrap().state, TaskState::Firing);
}

#[test]
fn an_at_most_once_fire_is_claimed_durably_before_it_is_sent() {
    let mut fixture = OwnerFixture::new();
    let guarantee = Guarantee::AtMostOnce;
    fixture.schedule(punctual_core::NewTask { guarantee, ..keyed("order", secs(1)) });
    fixture.now = fixture.now.after(secs(1));
    fixture.act();
    assert!(fixture.in_flight.is_empty(), "the claim is being written");
    fixture.run();
    assert_eq!(fixture.in_flight.len(), 1);
    assert!(matches!(fixture.cancel(key("order")), Ok(Cancelled::Firing(_))));
    assert_eq!(fixture.get(key("order")).unwrap().state, TaskState::Firing, "not dead yet");
    fixture.crash();
    fixture.advance(secs(60));
    assert!(fixture.in_flight.is_empty(), "never a second time");
    let dead = ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
    assert_eq!(dead[0].reason, DeadReason::Unknown);
}

#[test]
fn an_at_most_once_fire_with_a_known_outcome_leaves_no_claim() {
    for (outcome, done, reason) in [
        (Outcome::Acked, 1, None),
        (failed(), 0, Some(DeadReason::Exhausted)),
        (Outcome::Expired, 0, Some(DeadReason::Unknown)),
    ] {
        let mut fixture = OwnerFixture::new();
        let guarantee = Guarantee::AtMostOnce;
        fixture.schedule(punctual_core::NewTask { guarantee, ..once(secs(1)) });
        fixture.advance(secs(1));
        let delivery = fixture.report(outcome);
        fixture.advance(secs(60));
        assert!(fixture.in_flight.is_empty());
        let counts = fixture.counts();
        assert_eq!((counts.done, counts.dead), (done, 1 - done));
        assert_eq!((counts.scheduled, counts.dead_letters), (0, 1 - done));
        let dead = ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
        assert_eq!(dead.first().map(|letter| letter.reason), reason);
        let history = ready(fixture.store.history(PARTITION, delivery.fire_id.task, 9)).unwrap();
        assert_eq!(history.len(), 1, "one record per fire");
        assert_eq!(history[0].attempts.len(), 1);
    }
}

#[test]
fn after_a_crash_an_unsettled_fire_is_sent_again_under_its_fire_id() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(once(secs(1)));
    fixture.advance(secs(1));
    let lost = fixture.in_flight[0].fire_id;
    fixture.crash();
    fixture.run();
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(fixture.in_flight[0].fire_id, lost);
}

#[test]
fn a_batch_whose_answer_was_lost_is_written_once() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    fixture.fault = StoreFault::AnswerLost;
    let mut answer = fixture.send_schedule(once(secs(5)), Condition::Always);
    fixture.run();
    assert!(answer.try_recv().is_err(), "the result is not known yet");
    fixture.fault = StoreFault::None;
    fixture.advance(secs(1));
    assert!(matches!(answer.try_recv(), Ok(Ok(Scheduled::Created(_)))));
    assert_eq!(fixture.counts().accepted(), 1);
    fixture.advance(secs(5));
    assert_eq!(fixture.in_flight.len(), 1);
}

#[test]
fn while_the_store_is_unavailable_calls_are_refused_at_once() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    fixture.fault = StoreFault::Unavailable;
    let mut first = fixture.send_schedule(once(secs(5)), Condition::Always);
    fixture.run();
    assert!(first.try_recv().is_err(), "its batch may have reached the store");
    let mut second = fixture.send_schedule(once(secs(5)), Condition::Always);
    assert_eq!(second.try_recv().unwrap(), Err(EngineError::StoreUnavailable));
    fixture.fault = StoreFault::None;
    fixture.advance(secs(1));
    assert!(matches!(first.try_recv(), Ok(Ok(Scheduled::Created(_)))));
    fixture.schedule(once(secs(5)));
    assert_eq!(fixture.counts().accepted(), 2);
}

#[test]
fn while_the_store_is_unavailable_loaded_tasks_fire() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(once(secs(5)));
    fixture.fault = StoreFault::Unavailable;
    fixture.advance(secs(5));
    assert_eq!(fixture.in_flight.len(), 1);
    fixture.report(Outcome::Acked);
    fixture.advance(secs(5));
    fixture.fault = StoreFault::None;
    fixture.advance(secs(1));
    assert_eq!(fixture.counts().done, 1);
}

#[test]
fn a_full_store_refuses_new_tasks_and_the_rest_continues() {
    for resource in [Resource::Disk, Resource::Memory] {
        let mut fixture = OwnerFixture::new();
        fixture.schedule(keyed("order", secs(5)));
        (fixture.fault, fixture.full_resource) = (StoreFault::Full, resource);
        let mut created = fixture.send_schedule(once(secs(5)), Condition::Always);
        let mut replaced = fixture.send_schedule(keyed("order", secs(9)), Condition::Always);
        fixture.run();
        assert_eq!(created.try_recv().unwrap(), Err(EngineError::Full(resource)));
        assert_eq!(replaced.try_recv().unwrap(), Err(EngineError::Full(resource)));
        fixture.fault = StoreFault::None;
        fixture.advance(secs(5));
        assert_eq!(fixture.in_flight.len(), 1, "the task that was there");
        assert_eq!(fixture.counts().accepted(), 1);
    }
}

#[test]
fn commands_that_create_no_task_do_not_wait_for_refused_ones() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("paid", secs(5)));
    fixture.fault = StoreFault::FullForNewTasks;
    let mut created = fixture.send_schedule(once(secs(5)), Condition::Always);
    let mut cancelled = fixture.send_cancel(key("paid"));
    fixture.run();
    assert_eq!(created.try_recv().unwrap(), Err(EngineError::Full(Resource::Disk)));
    assert!(cancelled.try_recv().unwrap().is_ok(), "no time has passed");
    assert_eq!((fixture.counts().cancelled, fixture.counts().scheduled), (1, 0));
}

#[test]
fn a_task_loaded_while_its_replacement_was_written_fires_if_that_is_refused() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(5)));
    fixture.crash();
    // The replacement is decided before the first page is read, and refused after.
    let mut replaced = fixture.send_schedule(keyed("order", secs(9)), Condition::Always);
    let lookup = fixture.actions.iter().position(|it| matches!(it, Action::Lookup(_))).unwrap();
    fixture.perform(lookup);
    let load = fixture.actions.iter().position(|action| matches!(action, Action::Load { .. }));
    fixture.perform(load.unwrap());
    fixture.fault = StoreFault::Full;
    fixture.run();
    assert_eq!(replaced.try_recv().unwrap(), Err(EngineError::Full(Resource::Disk)));
    fixture.fault = StoreFault::None;
    fixture.advance(secs(5));
    assert_eq!(fixture.in_flight.len(), 1);
}

#[test]
fn an_outcome_that_arrives_while_a_replacement_is_written_counts_if_that_is_refused() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(1)));
    fixture.advance(secs(1));
    let mut replaced = fixture.send_schedule(keyed("order", secs(9)), Condition::Always);
    fixture.perform(0);
    fixture.report(Outcome::Acked);
    fixture.fault = StoreFault::Full;
    fixture.run();
    assert_eq!(replaced.try_recv().unwrap(), Err(EngineError::Full(Resource::Disk)));
    fixture.fault = StoreFault::None;
    fixture.advance(secs(5));
    assert_eq!((fixture.counts().done, fixture.counts().scheduled), (1, 0));
}

#[test]
fn history_is_swept_after_its_retention() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(once(secs(1)));
    fixture.advance(secs(1));
    fixture.report(Outcome::Acked);
    let records =
        |fixture: &OwnerFixture| ready(fixture.store.history(PARTITION, task.id, 9)).unwrap().len();
    fixture.advance(secs(6 * 86_400));
    assert_eq!(records(&fixture), 1);
    fixture.advance(secs(2 * 86_400));
    assert_eq!(records(&fixture), 0);
}

#[test]
fn large_tasks_are_written_in_batches_of_limited_size() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    let payload = punctual_core::Payload::Json(vec![b' '; 256 * 1024].into());
    let mut answers: Vec<_> = (0..100)
        .map(|_| {
            let new_task = punctual_core::NewTask { payload: payload.clone(), ..once(secs(9)) };
            fixture.send_schedule(new_task, Condition::Always)
        })
        .collect();
    let mut batches = 0;
    while let Some(Action::Apply(batch)) = fixture.actions.first() {
        let weight: usize = batch.changes.iter().map(|change| change.weight()).sum();
        assert!(weight <= punctual_store::Batch::WEIGHT_MAX, "{weight}");
        batches += 1;
        fixture.perform(0);
    }
    assert!(batches >= 7, "{batches}");
    for answer in &mut answers {
        assert!(matches!(answer.try_recv(), Ok(Ok(Scheduled::Created(_)))));
    }
}

#[test]
fn a_fenced_owner_stops_and_refuses_everything() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    let mut answer = fixture.send_schedule(once(secs(5)), Condition::Always);
    // Another owner acquires the partition; the pending batch has the old epoch.
    let old = fixture.ownership.epoch;
    let mine = std::mem::replace(&mut fixture.owner, OwnerFixture::new().owner);
    let actions = std::mem::take(&mut fixture.actions);
    fixture.crash();
    (fixture.owner, fixture.actions, fixture.ownership.epoch) = (mine, actions, old);
    fixture.run();
    assert!(fixture.stopped.is_some());
    assert_eq!(answer.try_recv().unwrap(), Err(EngineError::Stopped), "nothing was done");
    let mut refused = fixture.send_schedule(once(secs(5)), Condition::Always);
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped));
}

#[test]
fn a_task_scheduled_while_its_page_is_read_fires_once() {
    let mut fixture = OwnerFixture::new();
    // The first page is pending; a task that is due soon is written meanwhile.
    fixture.act();
    assert_eq!(fixture.actions.len(), 1);
    let answer = fixture.send_schedule(once(millis(5)), Condition::Always);
    fixture.perform(1);
    drop(answer);
    fixture.now = fixture.now.after(millis(5));
    fixture.act();
    assert_eq!(fixture.in_flight.len(), 1, "held in memory before the page is read");
    fixture.perform(0);
    fixture.advance(secs(1));
    assert_eq!(fixture.in_flight.len(), 1, "and not again because of the page");
}

#[test]
fn a_slow_receiver_holds_up_its_own_lane_only() {
    let mut fixture = OwnerFixture::new();
    for _ in 0..1000 {
        drop(fixture.send_schedule(once(secs(1)), Condition::Always));
    }
    let quick = punctual_core::Queue::new("quick").unwrap();
    let target = punctual_core::Target::Queue(quick.clone());
    fixture.schedule(punctual_core::NewTask { target, ..once(secs(1)) });
    fixture.advance(secs(1));
    let to_quick = fixture.in_flight.iter().filter(|delivery| {
        delivery.definition.target == punctual_core::Target::Queue(quick.clone())
    });
    assert_eq!(to_quick.count(), 1);
    let slow = fixture.in_flight.len() - 1;
    assert!((1..1000).contains(&slow), "{slow} in flight at once");
    while !fixture.in_flight.is_empty() {
        fixture.report(Outcome::Acked);
        fixture.run();
    }
    assert_eq!(fixture.counts().done, 1001, "all tasks in the end");
}

#[test]
fn a_drain_starts_nothing_and_waits_for_deliveries_in_flight() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(once(secs(1)));
    fixture.schedule(once(secs(2)));
    fixture.advance(secs(1));
    fixture.owner.on(punctual_engine::Event::Drain, fixture.now);
    fixture.advance(secs(5));
    assert_eq!(fixture.in_flight.len(), 1);
    assert!(!fixture.owner.is_quiet());
    fixture.report(Outcome::Acked);
    fixture.run();
    assert!(fixture.owner.is_quiet());
    assert_eq!((fixture.counts().done, fixture.counts().scheduled), (1, 1));
}
