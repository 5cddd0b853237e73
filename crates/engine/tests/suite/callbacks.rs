//! Callbacks: every end of a fire is reported once, by a task that is durable with the end.

use std::time::Duration;

use crate::fixture::{
    OwnerFixture, PARTITION, StoreFault, failed, id, key, keyed, millis, once, ready, secs, shop,
};
use punctual_core::{
    Backoff, Callbacks, DeadLetter, DeadReason, FireEnd, Guarantee, Jitter, NewTask, Outcome,
    Overlap, Payload, Queue, Reason, RetryPolicy, Schedule, Series, Target, Task, TaskId,
};
use punctual_engine::{Cancelled, Command, Condition, Delivery, EngineError, Subject, TouchTo};
use punctual_store::TaskStore;

/// Longer than an at-most-once attempt may take before its provisional callback is due.
const LONG: Duration = secs(16);

fn queue(name: &str) -> Target {
    Target::Queue(Queue::new(name).unwrap())
}

fn reported(new_task: NewTask) -> NewTask {
    NewTask { callbacks: Callbacks::new(Some(queue("done")), Some(queue("dead"))), ..new_task }
}

fn on_dead_only(new_task: NewTask) -> NewTask {
    NewTask { callbacks: Callbacks::new(None, Some(queue("dead"))), ..new_task }
}

/// One attempt, at most once.
fn claimed(new_task: NewTask) -> NewTask {
    NewTask { guarantee: Guarantee::AtMostOnce, ..new_task }
}

fn one_attempt() -> RetryPolicy {
    let backoff = Backoff::Fixed(secs(1));
    RetryPolicy { attempts_max: 1, backoff, jitter: Jitter::default() }
}

fn refused() -> Outcome {
    Outcome::Refused { reason: Reason::new("HTTP 410") }
}

/// The queues and payloads of the callbacks in flight.
fn callbacks_in_flight(fixture: &OwnerFixture) -> Vec<(String, String)> {
    let callbacks =
        fixture.in_flight.iter().filter(|delivery| delivery.definition.callback_of.is_some());
    callbacks.map(|delivery| (queue_of(delivery), text_of(delivery))).collect()
}

fn queue_of(delivery: &Delivery) -> String {
    match &delivery.definition.target {
        Target::Queue(queue) => queue.as_str().to_owned(),
        other => panic!("not a queue: {other:?}"),
    }
}

fn text_of(delivery: &Delivery) -> String {
    let Payload::Json(bytes) = &delivery.definition.payload else { panic!("no JSON") };
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn ack_all(fixture: &mut OwnerFixture) {
    while !fixture.in_flight.is_empty() {
        fixture.report(Outcome::Acked);
        fixture.run();
    }
}

fn letters(fixture: &OwnerFixture) -> Vec<DeadLetter> {
    ready(fixture.store.dead(PARTITION, &shop(), None, 99)).unwrap().items
}

fn end_of(fixture: &OwnerFixture, id: TaskId) -> FireEnd {
    ready(fixture.store.history(PARTITION, id, 1)).unwrap()[0].end
}

fn stored(fixture: &OwnerFixture, id: TaskId) -> Task {
    ready(fixture.store.get(PARTITION, &[id])).unwrap().remove(0).unwrap()
}

#[test]
fn every_end_is_reported_to_its_target_with_the_record_of_the_fire() {
    use Guarantee::{AtLeastOnce, AtMostOnce};
    let done = FireEnd::Done;
    let dead = FireEnd::Dead;
    for (guarantee, outcome, want, end) in [
        (AtLeastOnce, Outcome::Acked, "done", done),
        (AtLeastOnce, failed(), "dead", dead(DeadReason::Exhausted)),
        (AtLeastOnce, Outcome::Expired, "dead", dead(DeadReason::Exhausted)),
        (AtLeastOnce, refused(), "dead", dead(DeadReason::Refused)),
        (AtMostOnce, Outcome::Acked, "done", done),
        (AtMostOnce, failed(), "dead", dead(DeadReason::Exhausted)),
        (AtMostOnce, Outcome::Expired, "dead", dead(DeadReason::Unknown)),
        (AtMostOnce, refused(), "dead", dead(DeadReason::Refused)),
    ] {
        let mut fixture = OwnerFixture::new();
        let new_task = NewTask { guarantee, retry: one_attempt(), ..keyed("order", secs(1)) };
        let task = fixture.schedule(reported(new_task));
        fixture.advance(secs(1));
        fixture.report(outcome.clone());
        fixture.run();
        let fire_id = task.fire().id;
        let what = format!("{guarantee:?}, {outcome:?}");
        assert_eq!(end_of(&fixture, task.id), end, "{what}");
        let want = [(want.to_owned(), fire_id.to_string())];
        assert_eq!(callbacks_in_flight(&fixture), want, "{what}");
        let callback = &fixture.in_flight[0].definition;
        assert_eq!((callback.callback_of, &callback.key), (Some(fire_id), &None), "{what}");
        assert_eq!(callback.retry, RetryPolicy::default(), "{what}");
        ack_all(&mut fixture);
        fixture.advance(secs(60));
        assert_eq!(fixture.check_callbacks().len(), 1, "{what}");
        assert!(fixture.in_flight.is_empty(), "a callback has no callback: {what}");
        let counts = fixture.counts();
        assert_eq!((counts.accepted(), counts.scheduled), (2, 0), "{what}: {counts:?}");
    }
}

#[test]
fn a_fire_without_a_target_for_its_end_is_not_reported() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(on_dead_only(once(secs(1))));
    fixture.schedule(once(secs(1)));
    let cancelled = fixture.schedule(reported(keyed("order", secs(1))));
    fixture.cancel(id(&cancelled)).unwrap();
    fixture.advance(secs(1));
    ack_all(&mut fixture);
    assert_eq!(fixture.check_callbacks(), []);
    assert_eq!(fixture.counts().accepted(), 3);
}

#[test]
fn a_crash_after_the_end_does_not_lose_the_callback_and_before_it_there_is_none() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(reported(once(secs(1))));
    fixture.advance(secs(1));
    fixture.report(Outcome::Acked);
    // The end is decided and not written.
    fixture.crash();
    fixture.run();
    assert_eq!(callbacks_in_flight(&fixture), []);
    fixture.report(Outcome::Acked);
    // The end is written and has no effect yet.
    let apply = fixture.actions.remove(0);
    let _ = fixture.answer(apply);
    fixture.crash();
    fixture.run();
    let want = [("done".to_owned(), task.fire().id.to_string())];
    assert_eq!(callbacks_in_flight(&fixture), want);
    ack_all(&mut fixture);
    assert_eq!(fixture.check_callbacks().len(), 1);
}

#[test]
fn a_callback_is_in_memory_without_a_read_of_the_store() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(reported(once(secs(1))));
    fixture.advance(secs(1));
    fixture.report(Outcome::Acked);
    fixture.perform(0);
    assert_eq!(callbacks_in_flight(&fixture).len(), 1, "after the write of the end alone");
}

#[test]
fn overlapping_expired_and_redriven_fires_are_reported_too() {
    let mut fixture = OwnerFixture::new();
    let series = Series { overlap: Overlap::Allow, count: Some(2), ..Series::default() };
    let schedule = Schedule::Every { interval: secs(1), series: series.into() };
    fixture.schedule(NewTask { schedule, ..reported(keyed("beat", secs(0))) });
    fixture.advance(secs(2));
    assert_eq!(fixture.in_flight.len(), 2, "both fires are open");
    ack_all(&mut fixture);
    let reports = fixture.check_callbacks();
    assert_eq!(reports.len(), 2, "{reports:?}");

    let expires_after = Some(secs(2));
    let retry = one_attempt();
    let late = NewTask { expires_after, retry, ..reported(keyed("late", secs(1))) };
    let late = fixture.schedule(late);
    fixture.set_capacity(0);
    fixture.advance(secs(5));
    fixture.set_capacity(256);
    fixture.advance(secs(1));
    assert_eq!(end_of(&fixture, late.id), FireEnd::Dead(DeadReason::Expired));
    ack_all(&mut fixture);
    assert_eq!(fixture.check_callbacks().len(), 3);

    // The redriven fire ends again: another end, and another callback.
    let fire_id = letters(&fixture)[0].fire_id();
    fixture.task(Command::Redrive { subject: key("late"), fire_id }).unwrap();
    fixture.run();
    fixture.report(Outcome::Acked);
    fixture.run();
    ack_all(&mut fixture);
    let reports = fixture.check_callbacks();
    let of_late: Vec<_> = reports.iter().filter(|(_, reported)| *reported == fire_id).collect();
    assert_eq!(of_late.len(), 2);
    assert_ne!(of_late[0].0, of_late[1].0, "receivers tell them apart by their ids");
}

#[test]
fn a_claim_that_a_crash_leaves_behind_is_reported_when_its_attempt_must_be_over() {
    for new_task in [
        claimed(reported(keyed("order", secs(1)))),
        // Its task continues.
        NewTask {
            schedule: Schedule::every(secs(600)),
            ..claimed(on_dead_only(keyed("b", secs(0))))
        },
    ] {
        let mut fixture = OwnerFixture::new();
        let task = fixture.schedule(new_task);
        let fire_id = task.fire().id;
        fixture.now = task.fire_at;
        fixture.advance(millis(1));
        assert_eq!(fixture.in_flight.len(), 1);
        fixture.crash();
        fixture.advance(secs(14));
        assert_eq!(callbacks_in_flight(&fixture), [], "the receiver may still be at it");
        fixture.advance(secs(2));
        assert_eq!(callbacks_in_flight(&fixture), [("dead".to_owned(), fire_id.to_string())]);
        ack_all(&mut fixture);
        fixture.crash();
        fixture.advance(secs(60));
        assert!(fixture.in_flight.is_empty(), "once");
        assert_eq!(fixture.check_callbacks().len(), 1);
        assert_eq!(letters(&fixture)[0].reason, DeadReason::Unknown);
    }
}

#[test]
fn the_provisional_callback_of_a_claim_leaves_no_count_when_the_outcome_is_known() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(claimed(on_dead_only(once(secs(1)))));
    fixture.advance(secs(1));
    assert_eq!(fixture.counts().scheduled, 1, "it waits");
    fixture.report(Outcome::Acked);
    fixture.advance(secs(60));
    let counts = fixture.counts();
    assert_eq!((counts.accepted(), counts.done, counts.dead_letters), (1, 1, 0), "{counts:?}");
    assert_eq!(fixture.check_callbacks(), []);
    assert_eq!((fixture.owner.loaded(), fixture.in_flight.len()), (0, 0));
}

#[test]
fn a_provisional_callback_waits_as_long_as_its_attempt_is_in_flight() {
    for hands_over in [false, true] {
        let mut fixture = OwnerFixture::new();
        let task = fixture.schedule(claimed(on_dead_only(once(secs(1)))));
        fixture.advance(secs(1));
        if hands_over {
            fixture.hand_over();
            // Another broker has the delivery, and its end was not reported in time.
            fixture.advance(secs(14));
        } else {
            // A worker has extended its lease.
            fixture.advance(LONG * 10);
        }
        assert_eq!(callbacks_in_flight(&fixture), [], "hands over: {hands_over}");
        fixture.report(Outcome::Acked);
        fixture.advance(LONG * 10);
        assert_eq!(end_of(&fixture, task.id), FireEnd::Done);
        assert_eq!((fixture.check_callbacks(), fixture.in_flight.len()), (vec![], 0));
    }
}

#[test]
fn a_claim_that_was_not_sent_has_no_end_to_report() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(claimed(reported(keyed("order", secs(1)))));
    fixture.advance(secs(1));
    fixture.report_unsent();
    fixture.run();
    assert_eq!(fixture.check_callbacks().len(), 1, "it is claimed again");
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(end_of(&fixture, task.id), FireEnd::Done);
    assert_eq!(callbacks_in_flight(&fixture).len(), 1);
    // Recalled: cancelled before it was sent.
    fixture.hold_deliveries();
    fixture.schedule(claimed(reported(keyed("other", secs(1)))));
    fixture.advance(secs(1));
    assert_eq!(fixture.cancel(key("other")), Ok(Cancelled::Cancelled));
    fixture.advance(LONG);
    assert_eq!(fixture.check_callbacks().len(), 1);
}

#[test]
fn callers_cannot_change_a_provisional_callback() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(claimed(on_dead_only(once(secs(1)))));
    fixture.advance(secs(1));
    let (callback, _) = fixture.check_callbacks()[0];
    let subject = Subject::Id(shop(), callback);
    let firing = |result: Result<Task, EngineError>| matches!(result, Err(EngineError::Firing(_)));
    assert!(matches!(fixture.cancel(subject.clone()), Ok(Cancelled::Firing(_))));
    assert!(firing(fixture.task(Command::Pause(subject.clone()))));
    assert!(firing(fixture.task(Command::Resume(subject.clone()))));
    assert!(firing(fixture.task(Command::Fire(subject.clone()))));
    assert!(fixture.touch(subject.clone(), TouchTo::Within).is_err());
    assert_eq!(fixture.get(subject.clone()).unwrap().id, callback);
    // After a crash it is a task like any other.
    fixture.crash();
    assert!(fixture.task(Command::Pause(subject.clone())).is_ok());
    fixture.advance(secs(60));
    assert!(fixture.in_flight.is_empty());
    assert_eq!(fixture.cancel(subject), Ok(Cancelled::Cancelled));
}

#[test]
fn a_full_store_takes_ends_with_their_callbacks_and_refuses_new_tasks() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        let mut fixture = OwnerFixture::new();
        fixture.schedule(NewTask { guarantee, ..reported(once(secs(1))) });
        fixture.fault = StoreFault::FullForNewTasks;
        let mut refused = fixture.send_schedule(once(secs(1)), Condition::Always);
        fixture.advance(secs(1));
        assert!(matches!(refused.try_recv().unwrap(), Err(EngineError::Full(_))));
        // In one batch with a new task.
        fixture.report(Outcome::Acked);
        let mut refused = fixture.send_schedule(once(secs(1)), Condition::Always);
        fixture.run();
        assert!(matches!(refused.try_recv().unwrap(), Err(EngineError::Full(_))));
        assert_eq!(callbacks_in_flight(&fixture).len(), 1, "{guarantee:?}");
        ack_all(&mut fixture);
        assert_eq!(fixture.counts().done, 2);
        assert_eq!(fixture.check_callbacks().len(), 1);
    }
}

#[test]
fn a_callback_is_retried_and_its_dead_letter_is_not_reported() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(reported(once(secs(1))));
    fixture.advance(secs(1));
    fixture.report(Outcome::Acked);
    fixture.run();
    let mut attempts = 0;
    while !fixture.in_flight.is_empty() {
        fixture.report(failed());
        fixture.advance(secs(600));
        attempts += 1;
    }
    assert_eq!(attempts, RetryPolicy::default().attempts_max);
    assert_eq!(letters(&fixture).len(), 1);
    assert_eq!(fixture.check_callbacks().len(), 1);
}

#[test]
fn an_edit_changes_where_the_next_ends_are_reported() {
    let mut fixture = OwnerFixture::new();
    let beat = || NewTask { schedule: Schedule::every(secs(10)), ..keyed("beat", secs(0)) };
    let task = fixture.schedule(beat());
    fixture.schedule(reported(beat()));
    fixture.advance(secs(10));
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(callbacks_in_flight(&fixture).len(), 1);
    assert!(stored(&fixture, task.id).definition.callbacks.is_some());
    ack_all(&mut fixture);
    fixture.schedule(beat());
    fixture.advance(secs(10));
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(fixture.check_callbacks().len(), 1);
}
