//! Cron, interval and watch tasks, one rule at a time. `series_scenarios` runs them in random
//! scenarios.

use std::time::Duration;

use crate::fixture::{OwnerFixture, PARTITION, START, failed, key, keyed, millis, ready, secs};
use punctual_core::{
    Backoff, Cron, Dst, Due, FireEnd, FireRecord, Guarantee, Misfire, NewTask, Occasion, Outcome,
    Overlap, Payload, RetryPolicy, Schedule, Sequence, Series, SkipReason, Task, TaskId, TaskKey,
    TaskState, Timestamp, Version, Zone,
};
use punctual_engine::{
    Cancelled, Command, Condition, Delivery, EngineError, Event, Receipt, Reply, ScheduleCommand,
    Scheduled, StartState, TouchTo,
};
use punctual_store::{Batch, BatchNo, Change, Filter, Position, TaskStore};

fn every(interval: Duration, series: Series) -> NewTask {
    NewTask { schedule: Schedule::Every { interval, series: series.into() }, ..keyed("s", secs(0)) }
}

fn overlap(overlap: Overlap) -> Series {
    Series { overlap, ..Series::default() }
}

fn watch(on_return: bool) -> NewTask {
    let schedule = Schedule::Watch { within: secs(10), postpone_max: None, on_return };
    NewTask { schedule, ..keyed("w", secs(0)) }
}

/// Returns whole seconds since the start.
fn seconds(at: Timestamp) -> u64 {
    at.since(START).as_secs()
}

fn nominal(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(|delivery| seconds(delivery.fire_id.nominal_at)).collect()
}

fn history(fixture: &OwnerFixture, task: &Task) -> Vec<FireRecord> {
    let records = ready(fixture.store.history(PARTITION, task.id, 1000)).unwrap();
    records.into_iter().rev().collect()
}

fn ack_all(fixture: &mut OwnerFixture) {
    while !fixture.in_flight.is_empty() {
        fixture.report(Outcome::Acked);
    }
    fixture.run();
}

#[test]
fn an_interval_task_fires_on_time_however_long_each_fire_takes() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(every(secs(1), Series { count: Some(5), ..Series::default() }));
    fixture.advance(secs(1));
    for second in 1..=5 {
        assert_eq!(nominal(&fixture.sent).last(), Some(&second));
        fixture.advance(millis(300));
        ack_all(&mut fixture);
        fixture.advance(millis(700));
    }
    fixture.advance(secs(5));
    assert_eq!(nominal(&fixture.sent), [1, 2, 3, 4, 5]);
    assert_eq!(history(&fixture, &task).len(), 5);
    let counts = fixture.counts();
    assert_eq!((counts.scheduled, counts.done, counts.accepted()), (0, 1, 1));
}

#[test]
fn an_at_most_once_series_that_ends_with_skipped_fires_is_counted_once() {
    for outcome in [Some(Outcome::Acked), Some(failed()), None] {
        let mut fixture = OwnerFixture::new();
        let ends_at = Some(START.after(secs(3)));
        let series = Series { ends_at, ..overlap(Overlap::Skip) };
        let guarantee = Guarantee::AtMostOnce;
        fixture.schedule(NewTask { guarantee, ..every(secs(1), series) });
        // The first fire is sent when the last one is due already: the others are skipped.
        fixture.set_capacity(0);
        fixture.advance(secs(4));
        fixture.set_capacity(1);
        fixture.advance(millis(10));
        assert_eq!(nominal(&fixture.sent), [1]);
        let is_acked = outcome == Some(Outcome::Acked);
        fixture.report_delivery(0, outcome);
        fixture.advance(secs(60));
        assert_eq!(fixture.sent.len(), 1);
        let counts = fixture.counts();
        assert_eq!((counts.done, counts.accepted()), (1, 1), "{counts:?}");
        assert_eq!((counts.dead, counts.dead_letters), (0, i64::from(!is_acked)), "{counts:?}");
    }
}

#[test]
fn fires_may_overlap_and_a_failed_one_is_retried_among_the_others() {
    let mut fixture = OwnerFixture::new();
    let backoff = Backoff::Fixed(millis(2500));
    let retry = RetryPolicy { backoff, ..RetryPolicy::default() };
    let task = fixture.schedule(NewTask { retry, ..every(secs(1), overlap(Overlap::Allow)) });
    fixture.advance(secs(3));
    assert_eq!(nominal(&fixture.in_flight), [1, 2, 3], "nothing waits for the first");
    let gauges = fixture.gauges();
    assert_eq!((gauges.in_flight, gauges.firing), (3, 1), "three deliveries of one task");
    fixture.report_at(0, failed());
    fixture.run();
    fixture.report_at(0, Outcome::Acked);
    fixture.run();
    fixture.advance(secs(3));
    let sent: Vec<_> =
        fixture.sent.iter().map(|it| (seconds(it.fire_id.nominal_at), it.attempt.get())).collect();
    assert_eq!(sent, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (1, 2), (6, 1)]);
    // After a crash, the fires that were not settled are sent again, and no others.
    fixture.crash();
    fixture.sent.clear();
    fixture.advance(millis(1));
    let mut again = nominal(&fixture.sent);
    again.sort_unstable();
    assert_eq!(again, [1, 3, 4, 5, 6]);
    ack_all(&mut fixture);
    fixture.advance(millis(1));
    ack_all(&mut fixture);
    let done: Vec<_> =
        history(&fixture, &task).iter().map(|it| seconds(it.fire_id.nominal_at)).collect();
    assert_eq!(done, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn overlapping_fires_are_skipped_or_one_of_them_waits() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        for (policy, want, skipped) in [
            (Overlap::Skip, vec![1, 5], vec![(2, 4)]),
            (Overlap::QueueOne, vec![1, 2, 5], vec![(3, 4)]),
        ] {
            let mut fixture = OwnerFixture::new();
            let task = fixture.schedule(NewTask { guarantee, ..every(secs(1), overlap(policy)) });
            fixture.advance(millis(4500));
            assert_eq!(nominal(&fixture.sent), [1], "{policy:?} {guarantee:?}");
            ack_all(&mut fixture);
            fixture.advance(millis(10));
            ack_all(&mut fixture);
            fixture.advance(millis(600));
            ack_all(&mut fixture);
            assert_eq!(nominal(&fixture.sent), want, "{policy:?} {guarantee:?}");
            let skips: Vec<_> = history(&fixture, &task)
                .iter()
                .filter_map(|record| match record.end {
                    FireEnd::Skipped(it) => {
                        assert_eq!(it.why, SkipReason::Overlap);
                        Some((seconds(record.fire_id.nominal_at), seconds(it.until)))
                    }
                    _ => None,
                })
                .collect();
            let all: Vec<_> = skips.iter().flat_map(|(from, to)| *from..=*to).collect();
            let expected: Vec<_> = skipped.iter().flat_map(|(from, to)| *from..=*to).collect();
            assert_eq!(all, expected, "{policy:?} {guarantee:?}");
        }
    }
}

#[test]
fn after_an_outage_missed_fires_follow_the_misfire_policy() {
    for (misfire, want) in [
        (Misfire::FireOnce, vec![60]),
        (Misfire::FireAll, (1..=60).collect()),
        (Misfire::Skip, (55..=60).collect::<Vec<u64>>()),
    ] {
        let mut fixture = OwnerFixture::new();
        fixture.schedule(every(secs(1), Series { misfire, ..Series::default() }));
        fixture.now = START.after(secs(60));
        fixture.crash();
        for _ in 0..70 {
            fixture.advance(millis(1));
            ack_all(&mut fixture);
        }
        assert_eq!(nominal(&fixture.sent), want, "{misfire:?}");
    }
}

#[test]
fn fires_that_were_due_while_paused_are_skipped_and_recorded() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(every(secs(1), Series::default()));
    fixture.task(Command::Pause(key("s"))).unwrap();
    fixture.advance(millis(4500));
    let resumed = fixture.task(Command::Resume(key("s"))).unwrap();
    assert_eq!(seconds(resumed.fire_at), 5);
    fixture.advance(millis(600));
    assert_eq!(nominal(&fixture.sent), [5]);
    let record = history(&fixture, &task).remove(0);
    let FireEnd::Skipped(skipped) = record.end else { panic!("{record:?}") };
    assert_eq!((skipped.fires, skipped.why), (4, SkipReason::Paused));
}

#[test]
fn fires_that_were_due_while_paused_are_skipped_also_if_one_was_in_flight_all_the_time() {
    for policy in [Overlap::Allow, Overlap::QueueOne, Overlap::Skip] {
        let mut fixture = OwnerFixture::new();
        let series = Series { misfire: Misfire::FireAll, ..overlap(policy) };
        let task = fixture.schedule(every(secs(1), series));
        fixture.advance(secs(1));
        fixture.task(Command::Pause(key("s"))).unwrap();
        fixture.advance(secs(9));
        let resumed = fixture.task(Command::Resume(key("s"))).unwrap();
        assert_eq!(resumed.state, TaskState::Scheduled);
        fixture.advance(millis(10));
        assert_eq!(nominal(&fixture.in_flight), [1], "{policy:?}: the attempt continues");
        if policy == Overlap::Allow {
            fixture.advance(secs(1));
            assert_eq!(nominal(&fixture.in_flight), [1, 11]);
        }
        ack_all(&mut fixture);
        fixture.advance(secs(1));
        assert_eq!(
            nominal(&fixture.sent)[..2],
            [1, 11],
            "{policy:?}: {:?}",
            nominal(&fixture.sent)
        );
        let records = history(&fixture, &task);
        let skipped = records.iter().filter_map(|record| match record.end {
            FireEnd::Skipped(skipped) => Some((skipped.fires, skipped.why)),
            _ => None,
        });
        assert_eq!(skipped.collect::<Vec<_>>(), [(9, SkipReason::Paused)], "{policy:?}");
        fixture.crash();
        fixture.advance(millis(10));
        let counts = fixture.counts();
        assert_eq!((counts.scheduled, counts.paused, counts.accepted()), (1, 0, 1), "{counts:?}");
    }
}

#[test]
fn an_edit_takes_effect_at_once_under_the_same_id() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(every(secs(1), Series::default()));
    fixture.advance(secs(1));
    // Another payload: the attempt in flight counts, and later ones use the new definition.
    let payload = Payload::Json("2".into());
    let edited =
        fixture.schedule(NewTask { payload: payload.clone(), ..every(secs(1), Series::default()) });
    assert_eq!((edited.id, edited.version), (task.id, task.version.next()));
    ack_all(&mut fixture);
    fixture.advance(secs(1));
    assert_eq!(nominal(&fixture.sent), [1, 2]);
    assert_eq!(fixture.sent[1].definition.payload, payload);
    // Another interval: the attempt in flight is ignored, and the new times begin now.
    let edited = fixture.schedule(every(secs(10), Series::default()));
    assert_eq!((edited.id, seconds(edited.fire_at)), (task.id, 12));
    fixture.report(failed());
    fixture.advance(secs(11));
    assert_eq!(nominal(&fixture.sent), [1, 2, 12]);
    let ends: Vec<_> = history(&fixture, &task).iter().map(|record| record.end).collect();
    assert_eq!(ends, [FireEnd::Done, FireEnd::Replaced]);
    // A schedule without a fire time is refused, and nothing changes.
    let over = Series { ends_at: Some(START), ..Series::default() };
    let mut answer = fixture.send_schedule(every(secs(3), over), Condition::Always);
    fixture.run();
    assert_eq!(answer.try_recv().unwrap().unwrap_err(), EngineError::NeverFires);
}

#[test]
fn a_fire_that_was_sent_is_not_sent_again_after_an_edit_to_at_most_once() {
    let at_most_once =
        || NewTask { guarantee: Guarantee::AtMostOnce, ..every(secs(50), Series::default()) };
    // A retry is pending after a failure or an expiry, or the attempt is in flight.
    for begun in [Some(failed()), Some(Outcome::Expired), None] {
        let mut fixture = OwnerFixture::new();
        let task = fixture.schedule(every(secs(50), Series::default()));
        fixture.advance(secs(50));
        if let Some(outcome) = begun.clone() {
            fixture.report(outcome);
            fixture.run();
        }
        assert_eq!(fixture.schedule(at_most_once()).id, task.id);
        if begun.is_none() {
            fixture.report(failed());
        }
        fixture.advance(secs(49));
        assert_eq!(nominal(&fixture.sent), [50], "{begun:?}");
        assert_eq!(history(&fixture, &task)[0].end, FireEnd::Replaced);
        fixture.advance(secs(1));
        assert_eq!(nominal(&fixture.sent), [50, 100], "the series continues");
    }
    let mut fixture = OwnerFixture::new();
    fixture.schedule(every(secs(50), Series::default()));
    fixture.advance(secs(20));
    fixture.schedule(at_most_once());
    fixture.advance(secs(30));
    assert_eq!(nominal(&fixture.sent), [50], "nothing was sent, so it keeps its time");
}

#[test]
fn an_edit_with_an_idempotency_key_keeps_the_id_and_is_made_once() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(every(secs(1), Series::default()));
    for _ in 0..2 {
        let receipt = Receipt { key: TaskKey::new("k").unwrap(), digest: "d".to_owned() };
        let new_task = every(secs(10), Series::default()).into();
        let command = ScheduleCommand {
            new_task,
            condition: Condition::Always,
            receipt: Some(receipt),
            start: StartState::Scheduled,
        };
        let mut answer = fixture.send(Command::Schedule(command), |reply| match reply {
            Reply::Scheduled(scheduled) => Some(scheduled),
            _ => None,
        });
        fixture.run();
        let (Scheduled::Created(edited) | Scheduled::Replaced(edited)) =
            answer.try_recv().unwrap().unwrap();
        assert_eq!((edited.id, edited.version), (task.id, task.version.next()));
    }
}

#[test]
fn a_series_cancelled_in_flight_says_so_and_fires_no_more() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        let mut fixture = OwnerFixture::new();
        fixture.schedule(NewTask { guarantee, ..every(secs(1), Series::default()) });
        fixture.advance(secs(2));
        let cancelled = fixture.cancel(key("s")).unwrap();
        assert!(matches!(cancelled, Cancelled::Firing(_)), "{cancelled:?}");
        while !fixture.in_flight.is_empty() {
            fixture.report(failed());
            fixture.run();
        }
        fixture.advance(secs(60));
        assert_eq!(fixture.sent.len(), 2, "{guarantee:?}");
        assert_eq!(fixture.counts().cancelled, 1);
        assert_eq!(fixture.owner.loaded(), 0);
    }
}

#[test]
fn an_at_most_once_series_continues_while_a_fire_is_in_flight() {
    let mut fixture = OwnerFixture::new();
    let guarantee = Guarantee::AtMostOnce;
    let task = fixture.schedule(NewTask { guarantee, ..every(secs(1), Series::default()) });
    fixture.advance(secs(3));
    assert_eq!(nominal(&fixture.in_flight), [1, 2, 3]);
    let gauges = fixture.gauges();
    assert_eq!((gauges.firing, gauges.claimed, gauges.claimed_overlapping), (0, 0, 3));
    fixture.report_at(1, Outcome::Acked);
    fixture.run();
    // The third was not sent; the task is at a later fire.
    let delivery = fixture.in_flight.remove(1);
    fixture.owner.on(Event::Ended(vec![delivery.report(None)]), fixture.now);
    fixture.run();
    fixture.crash();
    fixture.sent.clear();
    fixture.advance(secs(1));
    assert_eq!(nominal(&fixture.sent), [4], "nothing is sent twice");
    let counts = fixture.counts();
    assert_eq!((counts.scheduled, counts.dead, counts.dead_letters), (1, 0, 3));
    let ends: Vec<_> = history(&fixture, &task).iter().map(|record| record.end).collect();
    assert!(matches!(ends[1], FireEnd::Done), "{ends:?}");
}

#[test]
fn a_manual_fire_leaves_the_schedule_alone() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(every(secs(10), Series::default()));
    fixture.advance(secs(3));
    fixture.task(Command::Fire(key("s"))).unwrap();
    assert_eq!(fixture.sent[0].occasion, Occasion::Manual);
    ack_all(&mut fixture);
    fixture.advance(secs(20));
    assert_eq!(nominal(&fixture.sent), [3, 10, 20]);
}

#[test]
fn a_manual_fire_makes_the_retry_of_an_overlapping_fire_and_not_the_next_fire_early() {
    let mut fixture = OwnerFixture::new();
    let backoff = Backoff::Fixed(secs(60));
    let retry = RetryPolicy { backoff, ..RetryPolicy::default() };
    fixture.schedule(NewTask { retry, ..every(secs(10), overlap(Overlap::Allow)) });
    fixture.advance(secs(10));
    fixture.report(failed());
    fixture.advance(secs(1));
    fixture.task(Command::Fire(key("s"))).unwrap();
    let retried = fixture.report(Outcome::Acked);
    assert_eq!((retried.attempt.get(), retried.fire_at), (2, START.after(secs(10))));
    // Nothing is left to retry, so this one is a fire of its own.
    fixture.advance(millis(1));
    fixture.task(Command::Fire(key("s"))).unwrap();
    assert_eq!(fixture.report(Outcome::Acked).occasion, Occasion::Manual);
    fixture.advance(secs(9));
    ack_all(&mut fixture);
    fixture.advance(secs(10));
    ack_all(&mut fixture);
    assert_eq!(nominal(&fixture.sent), [10, 10, 11, 20, 30]);
}

#[test]
fn a_watch_fires_once_when_it_is_silent_and_again_after_a_touch() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(watch(false));
    for _ in 0..5 {
        fixture.advance(secs(9));
        fixture.touch(key("w"), TouchTo::Within).unwrap();
    }
    assert!(fixture.sent.is_empty());
    fixture.advance(secs(100));
    assert_eq!(nominal(&fixture.sent), [55]);
    ack_all(&mut fixture);
    assert_eq!(fixture.get(key("w")).unwrap().state, TaskState::Done);
    assert_eq!(fixture.owner.loaded(), 0);
    fixture.advance(secs(1000));
    let until = fixture.touch(key("w"), TouchTo::Within).unwrap();
    assert_eq!(fixture.get(key("w")).unwrap().state, TaskState::Scheduled);
    fixture.advance(secs(11));
    assert_eq!((fixture.sent.len(), fixture.sent[1].fire_at), (2, until));
    ack_all(&mut fixture);
    assert_eq!(history(&fixture, &task).len(), 2);
    assert_eq!(fixture.cancel(key("w")).unwrap(), Cancelled::Cancelled);
    let counts = fixture.counts();
    assert_eq!((counts.cancelled, counts.accepted()), (1, 1));
}

#[test]
fn a_watch_touched_in_flight_is_armed_and_fires_on_return() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(watch(true));
    fixture.advance(secs(10));
    let until = fixture.touch(key("w"), TouchTo::Within).unwrap();
    assert_eq!(seconds(until), 20);
    // The attempt fails, and no retry is needed any more.
    fixture.report(failed());
    fixture.advance(millis(1));
    let occasions: Vec<_> = fixture.sent.iter().map(|it| it.occasion).collect();
    assert_eq!(occasions, [Occasion::Due, Occasion::Return]);
    // Touches continue while the return is delivered.
    fixture.advance(secs(5));
    fixture.touch(key("w"), TouchTo::Within).unwrap();
    ack_all(&mut fixture);
    assert_eq!(seconds(fixture.get(key("w")).unwrap().fire_at), 25);
    fixture.advance(secs(11));
    assert_eq!(fixture.sent.len(), 3);
    // After a crash, the fire for silence is not sent again.
    fixture.touch(key("w"), TouchTo::To(Due::In(secs(30)))).unwrap();
    fixture.crash();
    fixture.advance(millis(1));
    assert_eq!(fixture.sent.last().unwrap().occasion, Occasion::Return);
}

#[test]
fn a_series_cannot_be_touched() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(every(secs(1), Series::default()));
    for push in [TouchTo::Within, TouchTo::To(Due::In(secs(5)))] {
        assert_eq!(fixture.touch(key("s"), push).unwrap_err(), EngineError::NotTouchable);
    }
}

/// A store may hold a task that an earlier rule for days accepted, and that would be refused today.
#[test]
fn a_stored_cron_task_without_a_fire_time_can_be_shown_and_cancelled_and_ends_after_its_last_fire()
{
    for cancelled in [true, false] {
        let mut fixture = OwnerFixture::new();
        let cron = Cron::from_stored("0 0 30 2 */2", Zone::utc(), Dst::default()).unwrap();
        let schedule = Schedule::Cron { cron: cron.into(), series: Series::default().into() };
        let new_task = NewTask { schedule, ..keyed("s", secs(0)) };
        let due = START.after(secs(60));
        let id = TaskId::new(due, PARTITION, fixture.ownership.epoch, Sequence::FIRST);
        let stored = Task::new(id, new_task.into(), START, Version::FIRST);
        let batch = Batch::new(BatchNo::FIRST, vec![Change::Put(stored.clone())]);
        fixture.write(batch).unwrap();
        fixture.crash();
        fixture.advance(secs(1));
        assert_eq!(fixture.get(key("s")), Ok(stored.clone()));
        let filter = Filter::all(stored.definition.namespace.clone());
        let page = ready(fixture.store.list(PARTITION, &filter, Position::START, 10)).unwrap();
        assert_eq!(page.items, std::slice::from_ref(&stored));
        if cancelled {
            assert_eq!(fixture.cancel(key("s")), Ok(Cancelled::Cancelled));
        }
        fixture.advance(secs(3600));
        ack_all(&mut fixture);
        // The time that was decided before is still its own; there is none after it.
        let fires = if cancelled { vec![] } else { vec![60] };
        assert_eq!(nominal(&fixture.sent), fires);
        assert_eq!(fixture.get(key("s")), Err(EngineError::NotFound));
        let counts = fixture.counts();
        assert_eq!((counts.done, counts.cancelled), if cancelled { (0, 1) } else { (1, 0) });
    }
}
