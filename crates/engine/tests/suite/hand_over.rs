//! Hand-overs: the next owner does not send again what is in flight, and every call is answered.

use punctual_core::{
    AttemptNo, DeadReason, FireEnd, FireRecord, Guarantee, NewTask, Outcome, Schedule, Series,
    Task, TaskState,
};
use punctual_engine::{
    Cancelled, Command, Condition, EngineError, Event, HAND_OVER_WAIT, InFlight, Report, StoredAs,
};
use punctual_store::TaskStore;

use crate::fixture::{
    OwnerFixture, PARTITION, StoreFault, failed, id, key, keyed, millis, once, ready, secs, shop,
};

fn at_most_once(new_task: NewTask) -> NewTask {
    NewTask { guarantee: Guarantee::AtMostOnce, ..new_task }
}

fn history(fixture: &OwnerFixture, task: &Task) -> Vec<FireRecord> {
    ready(fixture.store.history(PARTITION, task.id, 9)).unwrap()
}

fn end_of(fixture: &OwnerFixture, task: &Task) -> FireEnd {
    history(fixture, task)[0].end
}

/// Schedules a task and sends its first attempt.
fn send_first(fixture: &mut OwnerFixture, new_task: NewTask) -> Task {
    let task = fixture.schedule(new_task);
    fixture.advance(secs(1));
    assert_eq!(fixture.in_flight.last().unwrap().fire_id.task, task.id);
    task
}

#[test]
fn the_next_owner_does_not_send_a_delivery_in_flight_again() {
    let mut fixture = OwnerFixture::new();
    let task = send_first(&mut fixture, keyed("order", secs(1)));
    fixture.hand_over();
    fixture.advance(secs(5));
    assert_eq!((fixture.sent.len(), fixture.hand_overs), (1, 1));
    assert_eq!(fixture.get(key("order")).unwrap().state, TaskState::Firing);
    assert!(matches!(fixture.cancel(id(&task)), Ok(Cancelled::Firing(_))));
    assert_eq!(fixture.gauges().firing, 1);
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(end_of(&fixture, &task), FireEnd::Done);
    assert_eq!((fixture.gauges().in_flight, fixture.counts().done), (0, 1));
}

#[test]
fn a_failure_that_is_passed_on_counts_as_an_attempt_and_is_retried() {
    let mut fixture = OwnerFixture::new();
    let task = send_first(&mut fixture, once(secs(1)));
    fixture.hand_over();
    fixture.report(failed());
    fixture.advance(secs(60));
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(fixture.in_flight[0].attempt.get(), 2);
    fixture.hand_over();
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(history(&fixture, &task)[0].attempts.len(), 2);
}

#[test]
fn a_delivery_that_is_never_reported_expires_at_the_next_owner() {
    let mut fixture = OwnerFixture::new();
    send_first(&mut fixture, NewTask { timeout: secs(3), ..once(secs(1)) });
    fixture.hand_over();
    fixture.advance(secs(7));
    assert_eq!(fixture.sent.len(), 1, "its timeout and the slack are not over");
    fixture.advance(secs(60));
    assert_eq!(fixture.sent[1].attempt.get(), 2);
    // A report of the first attempt changes nothing now.
    fixture.report_at(0, Outcome::Acked);
    fixture.run();
    assert_eq!(fixture.gauges().in_flight, 1);
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!((fixture.gauges().in_flight, fixture.counts().done), (0, 1));
}

#[test]
fn a_hand_over_waits_briefly_for_deliveries_in_flight_and_not_at_all_without_any() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    let start = fixture.now;
    fixture.start_hand_over();
    assert_eq!((fixture.hand_overs, fixture.now), (1, start), "at once");
    let task = send_first(&mut fixture, once(secs(1)));
    fixture.start_hand_over();
    fixture.now = fixture.now.after(HAND_OVER_WAIT - millis(1));
    fixture.run();
    assert_eq!(fixture.hand_overs, 1);
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(fixture.hand_overs, 2, "as soon as it is written");
    assert_eq!(end_of(&fixture, &task), FireEnd::Done);
    assert_eq!(fixture.owner.wakes_at().map(|at| at > fixture.now), Some(true));
}

#[test]
fn a_report_that_arrives_during_the_last_write_is_passed_on() {
    let mut fixture = OwnerFixture::new();
    let (one, other) = (once(secs(1)), once(secs(1)));
    let tasks = [fixture.schedule(one), fixture.schedule(other)];
    fixture.advance(secs(1));
    fixture.start_hand_over();
    fixture.report(Outcome::Acked);
    fixture.now = fixture.now.after(HAND_OVER_WAIT);
    fixture.act();
    assert_eq!(fixture.hand_overs, 0, "the first outcome is being written");
    fixture.report(Outcome::Acked);
    assert_eq!(fixture.orphans, []);
    fixture.run();
    assert_eq!(fixture.hand_overs, 1);
    for task in &tasks {
        assert_eq!(end_of(&fixture, task), FireEnd::Done);
    }
    assert_eq!((fixture.sent.len(), fixture.gauges().in_flight), (2, 0));
}

#[test]
fn accepted_calls_are_answered_and_later_ones_refused() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    let mut accepted = fixture.send_schedule(keyed("a", secs(9)), Condition::Always);
    fixture.start_hand_over();
    let mut later = fixture.send_schedule(keyed("b", secs(9)), Condition::Always);
    assert_eq!(later.try_recv().unwrap(), Err(EngineError::Stopped));
    fixture.run();
    assert!(accepted.try_recv().unwrap().is_ok());
    assert_eq!(fixture.hand_overs, 1);
    assert!(fixture.get(key("a")).is_ok());
    assert_eq!(fixture.get(key("b")), Err(EngineError::NotFound));
}

#[test]
fn calls_wait_until_inherited_deliveries_are_looked_up() {
    let mut fixture = OwnerFixture::new();
    let task = send_first(&mut fixture, at_most_once(keyed("order", secs(1))));
    fixture.start_hand_over();
    while fixture.is_handing_over() {
        fixture.step();
    }
    // The letter is still being read.
    let mut cancelled = fixture.send_cancel(key("order"));
    assert!(cancelled.try_recv().is_err());
    fixture.run();
    assert!(matches!(cancelled.try_recv().unwrap(), Ok(Cancelled::Firing(_))));
    assert_eq!(fixture.get(id(&task)).unwrap().state, TaskState::Firing);
}

#[test]
fn an_owner_that_is_still_taking_over_hands_on_what_it_inherited() {
    let mut fixture = OwnerFixture::new();
    send_first(&mut fixture, at_most_once(once(secs(1))));
    send_first(&mut fixture, once(secs(1)));
    fixture.hand_over();
    // Its lookups are not answered before it hands over in turn.
    fixture.start_hand_over();
    fixture.now = fixture.now.after(HAND_OVER_WAIT);
    fixture.act();
    assert_eq!(fixture.hand_overs, 2);
    fixture.start_hand_over();
    fixture.now = fixture.now.after(HAND_OVER_WAIT);
    fixture.act();
    assert_eq!(fixture.hand_overs, 3);
    fixture.advance(secs(1));
    fixture.report(Outcome::Acked);
    fixture.report(Outcome::Acked);
    fixture.advance(secs(60));
    assert_eq!((fixture.sent.len(), fixture.counts().done, fixture.counts().dead), (2, 2, 0));
}

#[test]
fn an_at_most_once_fire_gets_its_true_outcome_after_a_hand_over() {
    for (outcome, end) in [
        (Outcome::Acked, FireEnd::Done),
        (failed(), FireEnd::Dead(DeadReason::Exhausted)),
        (Outcome::Expired, FireEnd::Dead(DeadReason::Unknown)),
    ] {
        let mut fixture = OwnerFixture::new();
        let task = send_first(&mut fixture, at_most_once(keyed("order", secs(1))));
        let fire_id = task.fire().id;
        fixture.hand_over();
        assert_eq!(end_of(&fixture, &task), FireEnd::Dead(DeadReason::Unknown));
        assert_eq!((fixture.gauges().claimed, fixture.gauges().firing), (1, 0));
        let redrive = Command::Redrive { subject: key("order"), fire_id };
        assert_eq!(
            fixture.task(redrive),
            Err(EngineError::DeadLetterNotFound),
            "it may still arrive"
        );
        fixture.report(outcome);
        fixture.advance(secs(60));
        assert_eq!((end_of(&fixture, &task), fixture.sent.len()), (end, 1));
        assert_eq!((fixture.gauges().claimed, fixture.gauges().in_flight), (0, 0));
        assert_eq!(fixture.counts().accepted(), 1);
    }
}

#[test]
fn an_unsent_at_most_once_fire_is_sent_by_the_next_owner_unless_it_was_replaced() {
    for replaced in [false, true] {
        let mut fixture = OwnerFixture::new();
        let task = send_first(&mut fixture, at_most_once(keyed("order", secs(1))));
        if replaced {
            // The task that took its key has ended since.
            let other = fixture.schedule(keyed("order", secs(50)));
            assert_eq!(fixture.cancel(id(&other)), Ok(Cancelled::Cancelled));
        }
        fixture.hand_over();
        fixture.report_unsent();
        fixture.advance(secs(1));
        assert_eq!(fixture.in_flight.len(), usize::from(!replaced), "{replaced}");
        assert_eq!(fixture.counts().accepted(), 1 + i64::from(replaced));
        if replaced {
            assert_eq!(end_of(&fixture, &task), FireEnd::Replaced);
        }
    }
}

#[test]
fn an_at_most_once_series_continues_at_the_next_owner() {
    let mut fixture = OwnerFixture::new();
    let series = Series { count: Some(2), ..Series::default() };
    let schedule = Schedule::Every { interval: secs(10), series: series.into() };
    let task = fixture.schedule(at_most_once(NewTask { schedule, ..keyed("s", secs(0)) }));
    fixture.advance(secs(10));
    assert_eq!(fixture.in_flight.len(), 1);
    fixture.hand_over();
    assert_eq!(fixture.gauges().claimed_overlapping, 1);
    fixture.report(Outcome::Acked);
    fixture.advance(secs(10));
    fixture.report(Outcome::Acked);
    fixture.run();
    let ends: Vec<_> = history(&fixture, &task).iter().map(|record| record.end).collect();
    assert_eq!(ends, [FireEnd::Done, FireEnd::Done]);
}

#[test]
fn overlapping_fires_are_all_in_flight_at_the_next_owner() {
    let mut fixture = OwnerFixture::new();
    let series = Series { count: Some(4), ..Series::default() };
    let schedule = Schedule::Every { interval: secs(2), series: series.into() };
    let task = fixture.schedule(NewTask { schedule, ..keyed("s", secs(0)) });
    fixture.advance(secs(6));
    assert_eq!(fixture.in_flight.len(), 3, "the store has the first only");
    fixture.hand_over();
    assert_eq!((fixture.gauges().in_flight, fixture.gauges().firing), (3, 1));
    fixture.report_at(1, Outcome::Acked);
    fixture.hand_over();
    fixture.advance(secs(3));
    assert_eq!(fixture.sent.len(), 4);
    for _ in 0..3 {
        fixture.report(Outcome::Acked);
    }
    fixture.advance(secs(60));
    assert_eq!((fixture.sent.len(), history(&fixture, &task).len()), (4, 4));
    assert_eq!((fixture.counts().done, fixture.owner.loaded()), (1, 0));
}

#[test]
fn a_task_paused_in_flight_is_done_at_the_next_owner() {
    let mut fixture = OwnerFixture::new();
    let task = send_first(&mut fixture, keyed("order", secs(1)));
    fixture.task(Command::Pause(key("order"))).unwrap();
    fixture.hand_over();
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(end_of(&fixture, &task), FireEnd::Done);
}

#[test]
fn inherited_deliveries_of_unknown_fires_are_dropped_and_so_are_their_reports() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(once(secs(50)));
    let fire_id = task.fire().id;
    let (attempt, fired_at) = (AttemptNo::new(2), fixture.now);
    let until = fired_at.after(secs(60));
    let delivery = |stored_as| {
        let (task_id, namespace) = (fire_id.task, shop());
        InFlight { fire_id, task_id, namespace, attempt, fired_at, until, stored_as }
    };
    let claimed = StoredAs::Claimed { task_continues: false, key_reused: false, callback: None };
    fixture.crash();
    fixture.owner.inherit(vec![delivery(StoredAs::Filed), delivery(claimed), delivery(claimed)]);
    fixture.run();
    assert_eq!(
        fixture.gauges().in_flight,
        0,
        "the task is at another attempt, and there is no letter"
    );
    let orphan = Report::of(fire_id, task.attempt_next(), fired_at, Some(Outcome::Acked));
    fixture.owner.on(Event::Ended(vec![orphan]), fixture.now);
    fixture.advance(secs(50));
    assert_eq!(fixture.in_flight.len(), 1);
}

#[test]
fn a_delivery_that_expires_during_a_hand_over_is_left_to_the_next_owner() {
    let mut fixture = OwnerFixture::new();
    send_first(&mut fixture, NewTask { timeout: millis(100), ..once(secs(1)) });
    fixture.hand_over();
    // Its timeout and the slack end during the next hand-over.
    fixture.advance(secs(5));
    fixture.fault = StoreFault::Unavailable;
    let created = fixture.send_schedule(once(secs(500)), Condition::Always);
    fixture.start_hand_over();
    fixture.now = fixture.now.after(millis(200));
    fixture.act();
    assert!(fixture.owner.wakes_at().unwrap() > fixture.now, "not a busy loop");
    fixture.fault = StoreFault::None;
    fixture.advance(secs(1));
    assert_eq!((fixture.hand_overs, fixture.sent.len()), (2, 1));
    drop(created);
    fixture.advance(secs(60));
    assert_eq!(fixture.sent[1].attempt.get(), 2);
}

#[test]
fn a_hand_over_that_cannot_write_fails_in_time_and_reports_lost_commands() {
    let mut fixture = OwnerFixture::new();
    fixture.run();
    fixture.fault = StoreFault::Unavailable;
    let mut sent = fixture.send_schedule(once(secs(9)), Condition::Always);
    let mut unsent = fixture.send_schedule(once(secs(9)), Condition::Always);
    let mut undecided = fixture.send_cancel(key("order"));
    let (reply, mut in_flight) = tokio::sync::oneshot::channel();
    fixture.owner.on(Event::HandOver(reply), fixture.now);
    fixture.advance(secs(1));
    assert!(in_flight.try_recv().is_err());
    fixture.advance(secs(2));
    assert_eq!(in_flight.try_recv().unwrap(), Err(EngineError::Lost));
    assert!(fixture.ended);
    assert_eq!(sent.try_recv().unwrap(), Err(EngineError::Lost));
    assert_eq!(unsent.try_recv().unwrap(), Err(EngineError::Stopped), "never sent to the store");
    assert_eq!(undecided.try_recv().unwrap(), Err(EngineError::Stopped));
}

#[test]
fn an_owner_that_is_ended_writes_nothing_more_and_passes_reports_on() {
    let mut fixture = OwnerFixture::new();
    send_first(&mut fixture, once(secs(1)));
    let mut sent = fixture.send_schedule(once(secs(9)), Condition::Always);
    fixture.owner.on(Event::End, fixture.now);
    fixture.act();
    assert!(fixture.ended);
    assert_eq!(sent.try_recv().unwrap(), Err(EngineError::Lost));
    let mut later = fixture.send_cancel(key("order"));
    assert_eq!(later.try_recv().unwrap(), Err(EngineError::Stopped));
    fixture.actions.clear();
    let delivery = fixture.report(Outcome::Acked);
    assert_eq!(fixture.actions.len(), 0);
    let passed_on =
        Report::of(delivery.fire_id, delivery.attempt, delivery.fired_at, Some(Outcome::Acked));
    assert_eq!(fixture.orphans, [passed_on]);
}
