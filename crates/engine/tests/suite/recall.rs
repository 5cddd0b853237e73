//! Deliveries that wait in their courier: until the first byte leaves, a command reaches them.

use crate::fixture::{OwnerFixture, StoreFault, id, key, keyed, millis, once, secs, shop};
use punctual_core::{
    Due, FireEnd, Guarantee, NewTask, Outcome, Payload, Schedule, Series, TaskKey, TaskState,
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
fn conditions_hold_for_a_task_whose_delivery_waits() {
    for old in [keyed("order", secs(0)), at_most_once(keyed("order", secs(0)))] {
        let mut fixture = waiting(old);
        let version = fixture.waiting[0].version;
        let mut schedule = |condition| {
            let mut reply = fixture.send_schedule(keyed("order", secs(60)), condition);
            fixture.run();
            reply.try_recv().unwrap()
        };
        assert!(matches!(schedule(Condition::Absent), Err(EngineError::Exists(_))));
        let other = Condition::Version(version.next());
        assert!(matches!(schedule(other), Err(EngineError::VersionMismatch(_))));
        assert!(matches!(schedule(Condition::Version(version)), Ok(Scheduled::Replaced(_))));
        fixture.advance(secs(1));
        fixture.send_all_waiting();
        assert!(fixture.sent.is_empty(), "the old task, after it was replaced");
    }
}

#[test]
fn a_dead_letter_is_not_redriven_under_the_key_of_a_task_whose_delivery_waits() {
    for new_task in [keyed("order", secs(0)), at_most_once(keyed("order", secs(0)))] {
        let mut fixture = OwnerFixture::new();
        fixture.schedule(at_most_once(keyed("order", secs(0))));
        fixture.advance(secs(1));
        let dead = fixture.report(Outcome::Expired).fire_id;
        fixture.run();
        fixture.hold_deliveries();
        fixture.schedule(new_task);
        fixture.advance(secs(1));
        assert_eq!(fixture.waiting.len(), 1);
        let answer = fixture.task(Command::Redrive { subject: key("order"), fire_id: dead });
        assert!(matches!(answer, Err(EngineError::Exists(_))), "{answer:?}");
    }
}

#[test]
fn a_claimed_task_that_came_back_unsent_after_its_key_was_reused_is_not_sent() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(at_most_once(keyed("order", secs(0))));
    fixture.advance(secs(1));
    // Two more tasks have the key, and fire; the key is free again.
    for _ in 0..2 {
        fixture.schedule(at_most_once(keyed("order", secs(0))));
        fixture.advance(secs(1));
    }
    assert_eq!(fixture.sent.len(), 3);
    fixture.report_at(1, Outcome::Acked);
    fixture.run();
    fixture.report_unsent();
    fixture.advance(secs(60));
    assert_eq!(fixture.sent.len(), 2, "the first one counts as replaced");
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
fn all_fires_of_an_at_most_once_series_that_wait_are_recalled_after_its_last_one() {
    let series = Series { count: Some(2), ..Series::default() };
    let schedule = Schedule::Every { interval: secs(1), series: series.into() };
    let series = at_most_once(named("report", schedule));
    for replaces in [false, true] {
        let mut fixture = waiting(series.clone());
        fixture.advance(secs(1));
        assert_eq!(fixture.waiting.len(), 2, "the series has ended, and nothing was sent");
        match replaces {
            true => _ = fixture.schedule(keyed("report", secs(60))),
            false => assert_eq!(fixture.cancel(key("report")), Ok(Cancelled::Cancelled)),
        }
        fixture.send_all_waiting();
        assert!(fixture.sent.is_empty());
    }
}

#[test]
fn a_successor_sends_what_waited_in_the_courier_of_its_predecessor() {
    for new_task in [keyed("order", secs(0)), at_most_once(keyed("order", secs(0)))] {
        let mut fixture = waiting(new_task);
        fixture.hand_over();
        assert_eq!(fixture.hand_overs, 1);
        assert!(!fixture.send_waiting(0), "recalled by the old owner");
        fixture.advance(secs(1));
        fixture.send_all_waiting();
        assert_eq!(fixture.sent.len(), 1);
        fixture.report(Outcome::Acked);
        fixture.run();
        let counts = fixture.counts();
        assert_eq!((counts.done, counts.dead, counts.dead_letters), (1, 0, 0), "{counts:?}");
    }
}

#[test]
fn a_successor_cancels_what_waited_in_the_courier_of_its_predecessor() {
    for new_task in [keyed("order", secs(0)), at_most_once(keyed("order", secs(0)))] {
        let mut fixture = waiting(new_task);
        fixture.hand_over();
        assert_eq!(fixture.cancel(key("order")), Ok(Cancelled::Cancelled));
        fixture.advance(secs(60));
        fixture.send_all_waiting();
        assert!(fixture.sent.is_empty());
    }
}

#[test]
fn a_claim_that_becomes_durable_during_a_hand_over_is_not_sent_by_the_old_owner() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(at_most_once(keyed("order", secs(1))));
    fixture.now = fixture.now.after(secs(1));
    fixture.act();
    fixture.start_hand_over();
    fixture.hand_over();
    assert_eq!((fixture.hand_overs, fixture.crashes), (1, 0));
    fixture.advance(secs(1));
    assert_eq!(fixture.sent.len(), 1, "by the successor");
    assert_eq!(fixture.in_flight.len(), 1);
}

#[test]
fn a_claimed_fire_of_a_series_that_waits_during_a_hand_over_is_a_dead_letter() {
    let mut fixture = waiting(at_most_once(named("report", Schedule::every(secs(1)))));
    fixture.hand_over();
    assert!(!fixture.send_waiting(0));
    let counts = fixture.counts();
    assert_eq!((counts.scheduled, counts.dead_letters), (1, 1), "{counts:?}");
}

#[test]
fn an_owner_that_stops_recalls_what_was_not_sent() {
    for new_task in [once(secs(0)), at_most_once(once(secs(0)))] {
        let mut fixture = waiting(new_task);
        fixture.owner.on(Event::End, fixture.now);
        fixture.act();
        assert!(fixture.waiting[0].permit.is_recalled());
    }
}

#[test]
fn an_attempt_that_was_handed_over_says_when_it_was_sent() {
    for new_task in [keyed("order", secs(0)), at_most_once(keyed("order", secs(0)))] {
        let mut fixture = waiting(new_task);
        fixture.advance(secs(3));
        assert!(fixture.send_waiting(0));
        let (sent_at, task) = (fixture.now, fixture.sent[0].fire_id.task);
        fixture.hand_over();
        // No report arrives.
        fixture.in_flight.clear();
        fixture.advance(secs(30));
        let history = || ready(fixture.store.history(PARTITION, task, 9)).unwrap();
        let stored = || ready(fixture.store.get(PARTITION, &[task])).unwrap().pop().flatten();
        let attempts = stored().map(|task| task.attempts);
        let attempts = attempts.unwrap_or_else(|| history().remove(0).attempts);
        assert_eq!(attempts[0].fired_at, sent_at);
    }
}

#[test]
fn a_claim_whose_delivery_came_back_unsent_is_not_cancelled_and_stored_again() {
    let mut fixture = waiting(at_most_once(once(secs(0))));
    let task = fixture.waiting[0].fire_id.task;
    let subject = punctual_engine::Subject::Id(shop(), task);
    let mut cancel = fixture.send_cancel(subject);
    let delivery = fixture.waiting.remove(0);
    fixture.owner.on(Event::Ended(vec![delivery.report(None)]), fixture.now);
    fixture.run();
    let answer = cancel.try_recv().unwrap();
    fixture.advance(secs(1));
    fixture.send_all_waiting();
    match answer {
        Ok(Cancelled::Cancelled) => assert!(fixture.sent.is_empty(), "sent after it was cancelled"),
        answer => assert_eq!((answer, fixture.sent.len()), (Err(EngineError::Stopped), 1)),
    }
}

#[test]
fn an_at_most_once_task_that_is_sent_or_waits_cannot_be_touched() {
    let mut fixture = waiting(at_most_once(keyed("order", secs(0))));
    for _ in 0..2 {
        let answer = fixture.touch(key("order"), TouchTo::To(Due::In(secs(60))));
        assert!(matches!(answer, Err(EngineError::Firing(_))), "{answer:?}");
        fixture.send_all_waiting();
    }
    assert_eq!(fixture.sent.len(), 1);
}

#[test]
fn a_task_whose_delivery_waits_is_scheduled_and_not_firing() {
    for new_task in [keyed("order", secs(0)), at_most_once(keyed("order", secs(0)))] {
        let claims = usize::from(new_task.guarantee == Guarantee::AtMostOnce);
        let mut fixture = waiting(new_task);
        assert_eq!(fixture.get(key("order")).unwrap().state, TaskState::Scheduled);
        let waits = fixture.gauges();
        assert_eq!((waits.queued, waits.in_flight, waits.firing), (1, 0, 0), "{waits:?}");
        assert_eq!((waits.claimed, waits.claimed_unsent), (0, claims), "{waits:?}");
        fixture.send_all_waiting();
        assert_eq!(fixture.get(key("order")).unwrap().state, TaskState::Firing);
        let sent = fixture.gauges();
        assert_eq!((sent.queued, sent.in_flight, sent.firing), (0, 1, 1 - claims), "{sent:?}");
        assert_eq!((sent.claimed, sent.claimed_unsent), (claims, 0), "{sent:?}");
    }
}

#[test]
fn a_delivery_that_was_recalled_is_not_in_flight_before_its_courier_notices() {
    let mut fixture = waiting(keyed("order", secs(0)));
    fixture.touch(key("order"), TouchTo::To(Due::In(secs(60)))).unwrap();
    let gauges = fixture.gauges();
    assert_eq!((gauges.queued, gauges.in_flight, gauges.firing), (0, 0, 0), "{gauges:?}");
    assert_eq!(gauges.oldest_overdue, None);
}

#[test]
fn a_task_whose_claim_is_being_written_is_not_firing() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(at_most_once(keyed("order", secs(1))));
    fixture.fault = StoreFault::Unavailable;
    fixture.now = fixture.now.after(secs(1));
    fixture.act();
    let gauges = fixture.gauges();
    assert_eq!((gauges.queued, gauges.in_flight, gauges.firing), (1, 0, 0), "{gauges:?}");
}

#[test]
fn a_delivery_that_waits_counts_as_overdue() {
    let mut fixture = waiting(keyed("order", secs(0)));
    let due = fixture.waiting[0].fire_at;
    assert_eq!(fixture.gauges().oldest_overdue, Some(due));
    fixture.send_all_waiting();
    assert_eq!(fixture.gauges().oldest_overdue, None);
    // Of several the one that was due first, whichever was handed out first.
    let early = fixture.now.after(secs(5));
    fixture.schedule(named("early", Schedule::Once(Due::At(early))));
    fixture.set_capacity(0);
    fixture.advance(secs(10));
    fixture.schedule(keyed("late", secs(0)));
    fixture.set_capacity(8);
    fixture.advance(secs(1));
    assert_eq!(fixture.waiting.len(), 2);
    assert_eq!(fixture.gauges().oldest_overdue, Some(early));
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
