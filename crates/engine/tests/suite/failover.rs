//! Failover: a store that has lost batches gets them again, and no caller gets a wrong answer.

use punctual_core::{Due, FireEnd, NewTask, Outcome, Schedule, Task};
use punctual_engine::{Action, Cancelled, Condition, EngineError, Scheduled, TouchTo};
use punctual_store::{Batch, StoreError, TaskStore};

use crate::fixture::{
    OwnerFixture, PARTITION, PendingReply, StoreFault, key, keyed, millis, once, ready, secs,
};

fn end_of(fixture: &OwnerFixture, task: &Task) -> FireEnd {
    ready(fixture.store.history(PARTITION, task.id, 9)).unwrap()[0].end
}

#[test]
fn a_batch_in_doubt_that_is_fenced_may_have_been_written() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    fixture.fault = StoreFault::AnswerLost;
    let mut in_doubt = fixture.send_schedule(once(secs(9)), Condition::Always);
    fixture.run();
    fixture.fault = StoreFault::None;
    let old = fixture.ownership.epoch;
    let mine = std::mem::replace(&mut fixture.owner, OwnerFixture::new().owner);
    fixture.crash();
    (fixture.owner, fixture.ownership.epoch) = (mine, old);
    fixture.now = fixture.now.after(secs(1));
    fixture.run();
    assert!(fixture.stopped.is_some());
    assert_eq!(in_doubt.try_recv().unwrap(), Err(EngineError::Lost));
}

#[test]
fn a_store_that_has_lost_batches_gets_them_again() {
    let mut fixture = OwnerFixture::new();
    let fired = fixture.schedule(keyed("fired", secs(1)));
    fixture.advance(secs(1));
    for name in ["a", "b", "c"] {
        fixture.schedule(keyed(name, secs(50)));
    }
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(fixture.cancel(key("b")), Ok(Cancelled::Cancelled));
    let counts = fixture.counts();
    fixture.lose_batches(4);
    assert_ne!(fixture.counts(), counts);
    let mut refused = fixture.send_schedule(keyed("d", secs(50)), Condition::Always);
    fixture.run();
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped), "the caller tries again");
    fixture.schedule(keyed("d", secs(50)));
    assert_eq!(end_of(&fixture, &fired), FireEnd::Done);
    assert_eq!(fixture.counts().scheduled, 3);
    assert_eq!(
        (fixture.counts().done, fixture.counts().cancelled),
        (counts.done, counts.cancelled)
    );
    // It loses batches, is unavailable and is full in the middle of the repair.
    fixture.lose_batches(3);
    let mut refused = fixture.send_schedule(keyed("e", secs(50)), Condition::Always);
    for fault in [StoreFault::None, StoreFault::None, StoreFault::AnswerLost, StoreFault::Full] {
        fixture.fault = fault;
        fixture.now = fixture.now.after(millis(100));
        fixture.act();
        if !fixture.actions.is_empty() {
            fixture.perform(0);
        }
    }
    fixture.fault = StoreFault::None;
    fixture.advance(secs(1));
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped));
    fixture.schedule(keyed("e", secs(50)));
    assert_eq!(fixture.counts().scheduled, 4);
    assert!(fixture.stopped.is_none());
}

#[test]
fn lookups_from_before_the_repair_are_not_used() {
    let mut fixture = OwnerFixture::new();
    let first = fixture.schedule(keyed("a", secs(50)));
    fixture.lose_batches(1);
    // The store has no such key now, so this would be a second task with that key.
    let mut refused = fixture.send_schedule(keyed("a", secs(40)), Condition::Always);
    let mut keyless = fixture.send_schedule(once(secs(50)), Condition::Always);
    fixture.run();
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped));
    assert!(keyless.try_recv().unwrap().is_ok(), "decided without a lookup");
    assert_eq!(fixture.get(key("a")).unwrap(), first);
    let second = fixture.schedule(keyed("a", secs(40)));
    assert_eq!(end_of(&fixture, &first), FireEnd::Replaced);
    fixture.advance(secs(50));
    let fired: Vec<_> = fixture.sent.iter().map(|delivery| delivery.fire_id.task).collect();
    assert_eq!((fired.len(), fired[0]), (2, second.id));
}

#[test]
fn a_store_that_loses_the_same_batches_twice_gets_them_twice() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("a", secs(50)));
    for _ in 0..2 {
        fixture.lose_batches(fixture.count_batches());
        assert_eq!(fixture.counts().scheduled, 0);
        // Nothing is written; the owner asks whether the last batch is still there.
        fixture.advance(secs(3));
        assert_eq!(fixture.counts().scheduled, 1);
    }
}

#[test]
fn a_task_that_was_lost_while_its_page_was_read_fires() {
    let mut fixture = OwnerFixture::new();
    fixture.advance(secs(8));
    let task = fixture.schedule(once(secs(34)));
    fixture.advance(secs(6));
    fixture.schedule(once(secs(3600)));
    // The next page passes its time before the owner notices that the store does not have it (nor
    // the empty batch that asked meanwhile).
    fixture.lose_batches(3);
    let page = fixture.load_page_at(fixture.now.after(secs(1)));
    assert!(page > task.fire_at);
    fixture.advance(secs(60));
    let fired: Vec<_> = fixture.sent.iter().map(|delivery| delivery.fire_id.task).collect();
    assert_eq!(fired, [task.id], "{:?}", fixture.stopped);
}

/// Schedules a task that is due after the first page, and lets the store lose what `change` does to
/// it. The next page shows the task unchanged.
fn read_after_a_lost_change(
    new_task: NewTask,
    change: impl FnOnce(&mut OwnerFixture),
) -> OwnerFixture {
    let mut fixture = OwnerFixture::new();
    fixture.advance(secs(8));
    let task = fixture.schedule(new_task);
    fixture.advance(secs(6));
    change(&mut fixture);
    fixture.lose_batches(1);
    let page = fixture.load_page_at(fixture.now.after(secs(1)));
    assert!(page > task.fire_at);
    fixture
}

#[test]
fn a_series_whose_cancel_was_lost_while_its_page_was_read_never_fires() {
    let every = NewTask { schedule: Schedule::every(secs(34)), ..keyed("a", secs(34)) };
    let mut fixture = read_after_a_lost_change(every, |fixture| {
        assert_eq!(fixture.cancel(key("a")), Ok(Cancelled::Cancelled));
    });
    fixture.advance(secs(120));
    assert_eq!(fixture.sent.len(), 0, "{:?}", fixture.stopped);
    assert_eq!(fixture.owner.loaded(), 0);
    assert_eq!((fixture.counts().scheduled, fixture.counts().cancelled), (0, 1));
}

#[test]
fn a_page_whose_confirmation_was_not_answered_is_not_used_after_a_repair() {
    let mut fixture = read_after_a_lost_change(keyed("a", secs(34)), |fixture| {
        assert_eq!(fixture.cancel(key("a")), Ok(Cancelled::Cancelled));
    });
    assert_eq!(fixture.send_unanswered().changes, []);
    fixture.advance(secs(60));
    assert_eq!((fixture.sent.len(), fixture.owner.loaded()), (0, 0));
    assert!(fixture.stopped.is_none(), "{:?}", fixture.stopped);
    let next = fixture.schedule(keyed("b", secs(34)));
    fixture.advance(secs(34));
    assert_eq!(fixture.sent[0].fire_id.task, next.id, "pages are read on");
}

#[test]
fn a_cancel_is_not_answered_for_an_earlier_task_because_the_present_one_was_lost() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("a", secs(50)));
    assert_eq!(fixture.cancel(key("a")), Ok(Cancelled::Cancelled));
    fixture.schedule(keyed("a", secs(50)));
    fixture.lose_batches(1);
    assert_eq!(fixture.cancel(key("a")), Err(EngineError::Stopped), "the caller tries again");
    assert_eq!(fixture.counts().scheduled, 1);
    assert_eq!(fixture.cancel(key("a")), Ok(Cancelled::Cancelled));
    fixture.advance(secs(60));
    assert_eq!(fixture.sent.len(), 0, "{:?}", fixture.stopped);
}

#[test]
fn a_task_whose_touch_was_lost_while_its_page_was_read_fires_at_the_new_time_only() {
    let mut fixture = read_after_a_lost_change(keyed("a", secs(34)), |fixture| {
        fixture.touch(key("a"), TouchTo::To(Due::In(secs(90)))).unwrap();
    });
    let moved_to = fixture.now.after(secs(89));
    fixture.advance(secs(88));
    assert_eq!(fixture.sent.len(), 0, "{:?}", fixture.stopped);
    fixture.advance(secs(2));
    let fired: Vec<_> = fixture.sent.iter().map(|delivery| delivery.fire_at).collect();
    assert_eq!(fired, [moved_to], "{:?}", fixture.stopped);
}

#[test]
fn a_task_whose_touch_was_lost_before_it_was_looked_up_fires_at_the_new_time_only() {
    let mut fixture = OwnerFixture::new();
    fixture.advance(secs(8));
    let task = fixture.schedule(keyed("a", secs(34)));
    fixture.advance(secs(6));
    fixture.schedule(once(secs(3600)));
    // The task belongs to the page that is being read, so the owner looks it up after the touch.
    fixture.now = fixture.now.after(secs(1));
    fixture.act();
    let moved_to = task.fire_at.after(millis(500));
    let mut touched = fixture.send_touch(key("a"), TouchTo::To(Due::At(moved_to)));
    perform_lookup(&mut fixture);
    perform_write(&mut fixture);
    assert_eq!(touched.try_recv().unwrap(), Ok(moved_to));
    fixture.lose_batches(1);
    perform_lookup(&mut fixture);
    fixture.run();
    fixture.advance(secs(60));
    let fired: Vec<_> = fixture.sent.iter().map(|delivery| delivery.fire_at).collect();
    assert_eq!(fired, [moved_to], "{:?}", fixture.stopped);
}

#[test]
fn a_store_that_has_lost_more_than_is_retained_stops_the_owner() {
    let mut fixture = OwnerFixture::new();
    for name in ["a", "b"] {
        fixture.schedule(keyed(name, secs(500)));
        fixture.advance(secs(11));
    }
    fixture.lose_batches(2);
    let mut refused = fixture.send_schedule(keyed("c", secs(50)), Condition::Always);
    fixture.run();
    assert!(fixture.stopped.is_some());
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped), "nothing was done");
}

/// Lets the store lose the task "a" and sends a batch with a task of the given key without an
/// answer. Returns the call and the batch, which may still arrive at the store.
fn in_doubt_after_a_failover(
    fixture: &mut OwnerFixture,
    name: &str,
) -> (PendingReply<Scheduled>, Batch) {
    fixture.schedule(keyed("a", secs(50)));
    fixture.lose_batches(1);
    let created = fixture.send_schedule(keyed(name, secs(40)), Condition::Always);
    fixture.perform(0);
    let late = fixture.send_unanswered();
    fixture.now = fixture.now.after(millis(100));
    fixture.act();
    (created, late)
}

/// Performs the pending write.
fn perform_write(fixture: &mut OwnerFixture) {
    perform(fixture, |action| matches!(action, Action::Apply(_)));
}

/// Performs the pending lookup.
fn perform_lookup(fixture: &mut OwnerFixture) {
    perform(fixture, |action| matches!(action, Action::Lookup(_)));
}

fn perform(fixture: &mut OwnerFixture, which: impl Fn(&Action) -> bool) {
    let index = fixture.actions.iter().position(which).unwrap();
    fixture.perform(index);
}

#[test]
fn a_first_sending_that_arrives_after_the_repair_is_fenced_and_its_caller_tries_again() {
    let mut fixture = OwnerFixture::new();
    let (mut refused, late) = in_doubt_after_a_failover(&mut fixture, "b");
    perform_write(&mut fixture);
    assert!(refused.try_recv().is_err(), "an earlier sending may still arrive");
    perform_write(&mut fixture);
    assert!(matches!(fixture.write(late), Err(StoreError::Fenced { .. })));
    fixture.run();
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped));
    let task = fixture.schedule(keyed("b", secs(40)));
    assert_eq!(fixture.get(key("b")), Ok(task));
    assert_eq!(fixture.counts().scheduled, 2);
    fixture.advance(secs(60));
    assert_eq!(fixture.sent.len(), 2, "{:?}", fixture.stopped);
}

#[test]
fn a_batch_in_doubt_that_was_decided_without_what_was_lost_is_never_written() {
    let mut fixture = OwnerFixture::new();
    // The store has no such key now, so this would be a second task with that key.
    let (mut refused, late) = in_doubt_after_a_failover(&mut fixture, "a");
    perform_write(&mut fixture);
    let mut keyless = fixture.send_schedule(once(secs(50)), Condition::Always);
    perform_write(&mut fixture);
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped));
    assert!(matches!(fixture.write(late), Err(StoreError::Fenced { .. })));
    fixture.run();
    assert!(keyless.try_recv().unwrap().is_ok());
    assert_eq!(fixture.counts().scheduled, 2);
    assert_eq!(fixture.cancel(key("a")), Ok(Cancelled::Cancelled));
    fixture.advance(secs(60));
    assert_eq!(fixture.sent.len(), 1, "{:?}", fixture.stopped);
}

#[test]
fn a_store_that_fails_over_during_a_repair_is_repaired_and_fenced_again() {
    let mut fixture = OwnerFixture::new();
    let (mut refused, late) = in_doubt_after_a_failover(&mut fixture, "a");
    perform_write(&mut fixture);
    perform_write(&mut fixture);
    // The store loses the repair, and with it that it had begun.
    fixture.lose_batches(1);
    fixture.run();
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped));
    assert!(matches!(fixture.write(late), Err(StoreError::Fenced { .. })));
    assert_eq!(fixture.counts().scheduled, 1);
    fixture.advance(secs(60));
    assert_eq!(fixture.sent.len(), 1, "{:?}", fixture.stopped);
}

#[test]
fn a_full_store_is_not_reported_while_an_earlier_sending_may_still_succeed() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    let mut created = fixture.send_schedule(once(secs(9)), Condition::Always);
    let late = fixture.send_unanswered();
    fixture.fault = StoreFault::Full;
    fixture.advance(millis(100));
    assert!(matches!(fixture.stopped, Some(StoreError::Full { .. })), "{:?}", fixture.stopped);
    assert_eq!(created.try_recv().unwrap(), Err(EngineError::Lost));
    fixture.write(late).unwrap();
    (fixture.fault, fixture.stopped) = (StoreFault::None, None);
    fixture.crash();
    fixture.advance(secs(9));
    assert_eq!(fixture.sent.len(), 1);
}

#[test]
fn a_batch_in_doubt_without_new_tasks_waits_unchanged_for_space() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("a", secs(50)));
    let mut cancelled = fixture.send_cancel(key("a"));
    fixture.perform(0);
    fixture.send_unanswered();
    fixture.fault = StoreFault::Full;
    fixture.advance(secs(1));
    fixture.fault = StoreFault::None;
    fixture.advance(secs(1));
    assert_eq!(cancelled.try_recv().unwrap(), Ok(Cancelled::Cancelled));
    assert!(fixture.stopped.is_none());
}
