//! Deliveries that wait in their courier: until the first byte leaves, a command reaches them.

use crate::fixture::{OwnerFixture, StoreFault, id, key, keyed, millis, once, secs, shop};
use punctual_core::{
    Due, FireEnd, Guarantee, NewTask, Outcome, Payload, Schedule, TaskKey, TaskState,
};
use punctual_engine::{Cancelled, Command, Condition, EngineError, Event, Scheduled, TouchTo};
use punctual_store::TaskStore as _;

use crate::fixture::{PARTITION, ready};

fn payload(text: &str) -> Payload {
    Payload::Json(format!("{text:?}").into())
}

fn at_most_once(new_task: NewTask) -> NewTask {
    NewTask { guarantee: Guarantee::AtMostOnce, ..new_task }
}

fn named(name: &str, schedule: Schedule) -> NewTask {
    NewTask { key: Some(TaskKey::new(name).unwrap()), schedule, ..once(secs(0)) }
}

/// A fixture with one delivery that waits in its courier.
fn waiting(new_task: NewTask) -> OwnerFixture {
    let mut fixture = OwnerFixture::new();
    fixture.hold_deliveries();
    fixture.schedule(new_task);
    fixture.advance(secs(1));
    assert_eq!(fixture.waiting.len(), 1, "the delivery waits in its courier");
    fixture
}

fn ends(fixture: &OwnerFixture) -> Vec<FireEnd> {
    let id = fixture.waiting.first().map(|delivery| delivery.fire_id.task);
    let records = ready(fixture.store.history(PARTITION, id.unwrap(), 9)).unwrap();
    records.into_iter().map(|record| record.end).collect()
}

#[test]
fn a_task_whose_delivery_waits_is_cancelled_and_never_sent() {
    for new_task in [keyed("order", secs(0)), at_most_once(keyed("order", secs(0)))] {
        let mut fixture = waiting(new_task);
        assert_eq!(fixture.cancel(key("order")), Ok(Cancelled::Cancelled));
        assert_eq!(ends(&fixture), [FireEnd::Cancelled]);
        let counts = fixture.counts();
        assert_eq!((counts.cancelled, counts.dead, counts.scheduled), (1, 0, 0));
        assert!(!fixture.send_waiting(0), "it was recalled");
        fixture.advance(secs(60));
        assert!(fixture.sent.is_empty() && fixture.waiting.is_empty());
        assert_eq!((fixture.owner.loaded(), fixture.gauges().in_flight), (0, 0));
    }
}

#[test]
fn a_task_whose_delivery_was_sent_answers_firing() {
    for new_task in [keyed("order", secs(0)), at_most_once(keyed("order", secs(0)))] {
        let mut fixture = waiting(new_task);
        assert!(fixture.send_waiting(0));
        assert!(matches!(fixture.cancel(key("order")), Ok(Cancelled::Firing(_))));
        fixture.report(Outcome::Acked);
        fixture.run();
        assert_eq!(fixture.counts().done, 1);
    }
}

#[test]
fn a_task_that_is_replaced_while_its_delivery_waits_is_sent_in_its_new_version_only() {
    let old = NewTask { payload: payload("old"), ..keyed("order", secs(0)) };
    for old in [old.clone(), at_most_once(old)] {
        let new = NewTask { payload: payload("new"), ..old.clone() };
        let mut fixture = waiting(old);
        fixture.schedule(new);
        assert_eq!(ends(&fixture), [FireEnd::Replaced]);
        fixture.advance(secs(1));
        fixture.send_all_waiting();
        let sent: Vec<_> = fixture.sent.iter().map(|it| it.definition.payload.clone()).collect();
        assert_eq!(sent, [payload("new")]);
        fixture.report(Outcome::Acked);
        fixture.run();
        let counts = fixture.counts();
        assert_eq!((counts.done, counts.dead, counts.scheduled), (1, 0, 0), "{counts:?}");
    }
}

#[test]
fn a_delivery_that_waits_is_sent_if_the_store_refuses_the_replacement() {
    for old in [keyed("order", secs(0)), at_most_once(keyed("order", secs(0)))] {
        let mut fixture = waiting(old.clone());
        fixture.fault = StoreFault::FullForNewTasks;
        let new = NewTask { payload: payload("new"), ..old };
        let mut reply = fixture.send_schedule(new, Condition::Always);
        fixture.run();
        assert!(matches!(reply.try_recv().unwrap(), Err(EngineError::Full(_))));
        fixture.fault = StoreFault::None;
        fixture.advance(secs(1));
        fixture.send_all_waiting();
        assert_eq!(fixture.sent.len(), 1, "the old version, once");
        assert_eq!(fixture.sent[0].definition.payload, Payload::default());
        fixture.report(Outcome::Acked);
        fixture.run();
        assert_eq!(fixture.counts().done, 1);
    }
}

#[test]
fn a_refused_command_leaves_the_delivery_to_be_sent() {
    let mut fixture = waiting(keyed("order", secs(0)));
    let mut reply = fixture.send_schedule(keyed("order", secs(9)), Condition::Absent);
    fixture.run();
    assert!(matches!(reply.try_recv().unwrap(), Err(EngineError::Exists(_))));
    fixture.advance(secs(1));
    fixture.send_all_waiting();
    assert_eq!(fixture.sent.len(), 1);
}

#[test]
fn a_touch_moves_a_task_whose_delivery_waits() {
    let mut fixture = waiting(keyed("order", secs(0)));
    let until = fixture.touch(key("order"), TouchTo::To(Due::In(secs(60)))).unwrap();
    fixture.advance(secs(59));
    fixture.send_all_waiting();
    assert!(fixture.sent.is_empty());
    fixture.advance(secs(2));
    fixture.send_all_waiting();
    assert_eq!(fixture.sent.len(), 1);
    assert_eq!(fixture.sent[0].fire_at, until);
}

#[test]
fn a_touch_arms_a_watch_whose_delivery_waits_without_a_fire() {
    let mut fixture = waiting(named("lamp", Schedule::watch(millis(500))));
    fixture.touch(key("lamp"), TouchTo::Within).unwrap();
    assert!(!fixture.send_waiting(0), "the watch is not silent any more");
    fixture.advance(millis(499));
    assert!(fixture.waiting.is_empty() && fixture.sent.is_empty());
    fixture.advance(millis(1));
    assert_eq!(fixture.waiting.len(), 1, "silent again");
}

#[test]
fn a_paused_task_sends_nothing_until_it_is_resumed() {
    let mut fixture = waiting(keyed("order", secs(0)));
    let paused = fixture.task(Command::Pause(key("order"))).unwrap();
    assert_eq!(paused.state, TaskState::Paused);
    fixture.advance(secs(10));
    fixture.send_all_waiting();
    assert!(fixture.sent.is_empty());
    fixture.task(Command::Resume(key("order"))).unwrap();
    fixture.advance(secs(1));
    fixture.send_all_waiting();
    assert_eq!(fixture.sent.len(), 1);
}

#[test]
fn an_edited_series_sends_its_waiting_fire_as_it_is_now() {
    let every = Schedule::every(secs(1));
    let mut fixture =
        waiting(NewTask { payload: payload("old"), ..named("report", every.clone()) });
    let mut reply = fixture.send_schedule(
        NewTask { payload: payload("new"), ..named("report", every) },
        Condition::Always,
    );
    fixture.run();
    assert!(matches!(reply.try_recv().unwrap(), Ok(Scheduled::Replaced(_))));
    assert!(!fixture.send_waiting(0));
    fixture.advance(millis(0));
    fixture.send_all_waiting();
    let sent: Vec<_> = fixture.sent.iter().map(|it| it.definition.payload.clone()).collect();
    assert_eq!(sent, [payload("new")], "the fire was due and not sent, so it is sent once");
}

#[test]
fn an_at_most_once_fire_of_a_series_that_waits_is_cancelled_with_it() {
    let series = at_most_once(named("report", Schedule::every(secs(1))));
    let mut fixture = waiting(series);
    assert_eq!(fixture.cancel(key("report")), Ok(Cancelled::Cancelled));
    assert!(!fixture.send_waiting(0));
    fixture.run();
    let counts = fixture.counts();
    assert_eq!((counts.cancelled, counts.scheduled, counts.dead_letters), (1, 0, 1));
}

#[test]
fn a_successor_sends_what_waited_in_the_courier_of_its_predecessor() {
    let mut fixture = waiting(keyed("order", secs(0)));
    fixture.hand_over();
    assert_eq!(fixture.hand_overs, 1);
    assert!(fixture.waiting[0].permit.send(fixture.now).is_err(), "recalled by the old owner");
    assert_eq!(fixture.cancel(key("order")), Ok(Cancelled::Cancelled));
}

#[test]
fn an_owner_that_stops_recalls_what_was_not_sent() {
    let mut fixture = waiting(once(secs(0)));
    fixture.owner.on(Event::End, fixture.now);
    fixture.act();
    assert!(fixture.waiting[0].permit.is_recalled());
}

#[test]
fn a_delivery_that_waits_counts_as_overdue() {
    let mut fixture = waiting(keyed("order", secs(0)));
    let due = fixture.waiting[0].fire_at;
    assert_eq!(fixture.gauges().oldest_overdue, Some(due));
    fixture.send_all_waiting();
    assert_eq!(fixture.gauges().oldest_overdue, None);
}

#[test]
fn a_delivery_that_came_back_unsent_is_neither_in_flight_nor_overdue_when_its_task_is_done() {
    let mut fixture = waiting(keyed("order", secs(0)));
    let delivery = fixture.waiting.remove(0);
    fixture.owner.on(Event::Ended(vec![delivery.report(None)]), fixture.now);
    fixture.act();
    assert_eq!(fixture.waiting.len(), 1, "handed out again");
    let again = fixture.gauges();
    assert_eq!((again.in_flight, again.queued, again.firing), (0, 1, 0), "{again:?}");
    fixture.send_all_waiting();
    fixture.report(Outcome::Acked);
    fixture.run();
    let over = fixture.gauges();
    assert_eq!((over.in_flight, over.queued, over.oldest_overdue), (0, 0, None), "{over:?}");
}

#[test]
fn a_task_that_expires_in_its_courier_is_a_dead_letter_without_an_attempt() {
    let expiring = NewTask { expires_after: Some(secs(5)), ..once(secs(0)) };
    for new_task in [expiring.clone(), at_most_once(expiring)] {
        let mut fixture = waiting(new_task);
        let task = fixture.waiting[0].fire_id.task;
        fixture.advance(secs(10));
        assert!(!fixture.send_waiting(0), "too late");
        fixture.run();
        fixture.advance(secs(1));
        assert_eq!(fixture.counts().dead, 1);
        let letters = ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
        assert_eq!((letters[0].task.id, letters[0].task.attempts.len()), (task, 0));
        let task = letters[0].task.clone();
        assert_eq!(fixture.get(id(&task)), Err(EngineError::NotFound));
    }
}
