//! Tasks that go on: cron, every and watch, one rule at a time. Random lives of them are in `again.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod world;

use std::time::Duration;

use punctual_core::{
    Backoff, Due, FireEnd, FireRecord, Guarantee, Misfire, NewTask, Occasion, Outcome, Overlap,
    PartitionId, Payload, RetryPolicy, Schedule, Series, SkipReason, Task, TaskKey, TaskState,
    Timestamp,
};
use punctual_engine::{
    Cancelled, Command, Condition, Delivery, EngineError, Event, Push, Receipt, Reply,
    ScheduleCommand, Scheduled,
};
use punctual_store::TaskStore;
use world::{START, World, failed, key, millis, named, ready, secs};

fn every(interval: Duration, series: Series) -> NewTask {
    NewTask { schedule: Schedule::Every { interval, series: series.into() }, ..named("s", secs(0)) }
}

fn overlap(overlap: Overlap) -> Series {
    Series { overlap, ..Series::default() }
}

fn watch(on_return: bool) -> NewTask {
    let schedule = Schedule::Watch { within: secs(10), postpone_max: None, on_return };
    NewTask { schedule, ..named("w", secs(0)) }
}

/// Whole seconds since the start.
fn seconds(at: Timestamp) -> u64 {
    at.since(START).as_secs()
}

fn nominal(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(|delivery| seconds(delivery.fire_id.nominal_at)).collect()
}

fn history(world: &World, task: &Task) -> Vec<FireRecord> {
    let records = ready(world.store.history(PartitionId::FIRST, task.id, 1000)).unwrap();
    records.into_iter().rev().collect()
}

fn ack_all(world: &mut World) {
    while !world.carried.is_empty() {
        world.comes_back(Outcome::Acked);
    }
    world.settle();
}

#[test]
fn every_fires_on_the_beat_however_long_each_takes_and_is_one_task() {
    let mut world = World::new();
    let task = world.schedule(every(secs(1), Series { count: Some(5), ..Series::default() }));
    world.pass(secs(1));
    for second in 1..=5 {
        assert_eq!(nominal(&world.sent).last(), Some(&second));
        world.pass(millis(300));
        ack_all(&mut world);
        world.pass(millis(700));
    }
    world.pass(secs(5));
    assert_eq!(nominal(&world.sent), [1, 2, 3, 4, 5]);
    assert_eq!(history(&world, &task).len(), 5);
    let counts = world.counts();
    assert_eq!((counts.scheduled, counts.done, counts.accepted()), (0, 1, 1));
}

#[test]
fn fires_may_overlap_and_a_failed_one_is_tried_again_beside_the_others() {
    let mut world = World::new();
    let backoff = Backoff::Fixed(millis(2500));
    let retry = RetryPolicy { backoff, ..RetryPolicy::default() };
    let task = world.schedule(NewTask { retry, ..every(secs(1), overlap(Overlap::Allow)) });
    world.pass(secs(3));
    assert_eq!(nominal(&world.carried), [1, 2, 3], "nothing waits for the first");
    let gauges = world.gauges();
    assert_eq!((gauges.inflight, gauges.firing), (3, 1), "three deliveries of one task");
    world.comes_back_from(0, failed());
    world.settle();
    world.comes_back_from(0, Outcome::Acked);
    world.settle();
    world.pass(secs(3));
    let sent: Vec<_> =
        world.sent.iter().map(|it| (seconds(it.fire_id.nominal_at), it.attempt.get())).collect();
    assert_eq!(sent, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (1, 2), (6, 1)]);
    // What was not over when the owner crashed is sent again, and nothing else.
    world.crash();
    world.sent.clear();
    world.pass(millis(1));
    let mut again = nominal(&world.sent);
    again.sort_unstable();
    assert_eq!(again, [1, 3, 4, 5, 6]);
    ack_all(&mut world);
    world.pass(millis(1));
    ack_all(&mut world);
    let done: Vec<_> =
        history(&world, &task).iter().map(|it| seconds(it.fire_id.nominal_at)).collect();
    assert_eq!(done, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_fire_that_overlaps_is_skipped_or_one_of_them_waits() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        for (policy, want, skipped) in [
            (Overlap::Skip, vec![1, 5], vec![(2, 4)]),
            (Overlap::QueueOne, vec![1, 2, 5], vec![(3, 4)]),
        ] {
            let mut world = World::new();
            let task = world.schedule(NewTask { guarantee, ..every(secs(1), overlap(policy)) });
            world.pass(millis(4500));
            assert_eq!(nominal(&world.sent), [1], "{policy:?} {guarantee:?}");
            ack_all(&mut world);
            world.pass(millis(10));
            ack_all(&mut world);
            world.pass(millis(600));
            ack_all(&mut world);
            assert_eq!(nominal(&world.sent), want, "{policy:?} {guarantee:?}");
            let skips: Vec<_> = history(&world, &task)
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
fn after_an_outage_missed_fires_are_made_up_for_as_agreed() {
    for (misfire, want) in [
        (Misfire::FireOnce, vec![60]),
        (Misfire::FireAll, (1..=60).collect()),
        (Misfire::Skip, (55..=60).collect::<Vec<u64>>()),
    ] {
        let mut world = World::new();
        world.schedule(every(secs(1), Series { misfire, ..Series::default() }));
        world.now = START.after(secs(60));
        world.crash();
        for _ in 0..70 {
            world.pass(millis(1));
            ack_all(&mut world);
        }
        assert_eq!(nominal(&world.sent), want, "{misfire:?}");
    }
}

#[test]
fn what_was_due_while_paused_is_left_out_and_said_so() {
    let mut world = World::new();
    let task = world.schedule(every(secs(1), Series::default()));
    world.task(Command::Pause(key("s"))).unwrap();
    world.pass(millis(4500));
    let resumed = world.task(Command::Resume(key("s"))).unwrap();
    assert_eq!(seconds(resumed.fire_at), 5);
    world.pass(millis(600));
    assert_eq!(nominal(&world.sent), [5]);
    let record = history(&world, &task).remove(0);
    let FireEnd::Skipped(skipped) = record.end else { panic!("{record:?}") };
    assert_eq!((skipped.fires, skipped.why), (4, SkipReason::Paused));
}

#[test]
fn an_edit_takes_effect_at_once_under_the_same_id() {
    let mut world = World::new();
    let task = world.schedule(every(secs(1), Series::default()));
    world.pass(secs(1));
    // Another payload: the attempt under way goes on and counts, what follows is of the new definition.
    let payload = Payload::Json("2".into());
    let edited =
        world.schedule(NewTask { payload: payload.clone(), ..every(secs(1), Series::default()) });
    assert_eq!((edited.id, edited.version), (task.id, task.version.next()));
    ack_all(&mut world);
    world.pass(secs(1));
    assert_eq!(nominal(&world.sent), [1, 2]);
    assert_eq!(world.sent[1].definition.payload, payload);
    // Another interval: what is under way is over, and the new times begin now.
    let edited = world.schedule(every(secs(10), Series::default()));
    assert_eq!((edited.id, seconds(edited.fire_at)), (task.id, 12));
    world.comes_back(failed());
    world.pass(secs(11));
    assert_eq!(nominal(&world.sent), [1, 2, 12]);
    let ends: Vec<_> = history(&world, &task).iter().map(|record| record.end).collect();
    assert_eq!(ends, [FireEnd::Done, FireEnd::Replaced]);
    // One that would never fire is refused, and nothing changes.
    let over = Series { ends_at: Some(START), ..Series::default() };
    let mut answer = world.send_schedule(every(secs(3), over), Condition::Always);
    world.settle();
    assert_eq!(answer.try_recv().unwrap().unwrap_err(), EngineError::Never);
}

#[test]
fn what_was_sent_is_not_sent_again_once_an_edit_says_at_most_once() {
    let at_most_once =
        || NewTask { guarantee: Guarantee::AtMostOnce, ..every(secs(50), Series::default()) };
    // One fire waits for its retry; one is under way; one is to come.
    for begun in [Some(failed()), Some(Outcome::Expired), None] {
        let mut world = World::new();
        let task = world.schedule(every(secs(50), Series::default()));
        world.pass(secs(50));
        if let Some(outcome) = begun.clone() {
            world.comes_back(outcome);
            world.settle();
        }
        assert_eq!(world.schedule(at_most_once()).id, task.id);
        if begun.is_none() {
            world.comes_back(failed());
        }
        world.pass(secs(49));
        assert_eq!(nominal(&world.sent), [50], "{begun:?}");
        assert_eq!(history(&world, &task)[0].end, FireEnd::Replaced);
        world.pass(secs(1));
        assert_eq!(nominal(&world.sent), [50, 100], "it goes on");
    }
    let mut world = World::new();
    world.schedule(every(secs(50), Series::default()));
    world.pass(secs(20));
    world.schedule(at_most_once());
    world.pass(secs(30));
    assert_eq!(nominal(&world.sent), [50], "nothing was sent: it keeps its time");
}

#[test]
fn an_edit_under_an_idempotency_key_is_made_in_place_and_once() {
    let mut world = World::new();
    let task = world.schedule(every(secs(1), Series::default()));
    for _ in 0..2 {
        let receipt = Receipt { key: TaskKey::new("k").unwrap(), digest: "d".to_owned() };
        let new_task = every(secs(10), Series::default()).into();
        let order =
            ScheduleCommand { new_task, condition: Condition::Always, receipt: Some(receipt) };
        let mut answer = world.send(Command::Schedule(order), |told| match told {
            Reply::Scheduled(scheduled) => Some(scheduled),
            _ => None,
        });
        world.settle();
        let (Scheduled::Created(edited) | Scheduled::Replaced(edited)) =
            answer.try_recv().unwrap().unwrap();
        assert_eq!((edited.id, edited.version), (task.id, task.version.next()));
    }
}

#[test]
fn a_series_that_is_cancelled_while_it_fires_says_so_and_fires_no_more() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        let mut world = World::new();
        world.schedule(NewTask { guarantee, ..every(secs(1), Series::default()) });
        world.pass(secs(2));
        let cancelled = world.cancel(key("s")).unwrap();
        assert!(matches!(cancelled, Cancelled::Firing(_)), "{cancelled:?}");
        while !world.carried.is_empty() {
            world.comes_back(failed());
            world.settle();
        }
        world.pass(secs(60));
        assert_eq!(world.sent.len(), 2, "{guarantee:?}");
        assert_eq!(world.counts().cancelled, 1);
        assert_eq!(world.owner.loaded(), 0);
    }
}

#[test]
fn at_most_once_goes_on_while_a_fire_is_under_way_and_its_end_is_known_at_last() {
    let mut world = World::new();
    let guarantee = Guarantee::AtMostOnce;
    let task = world.schedule(NewTask { guarantee, ..every(secs(1), Series::default()) });
    world.pass(secs(3));
    assert_eq!(nominal(&world.carried), [1, 2, 3]);
    let gauges = world.gauges();
    assert_eq!((gauges.firing, gauges.claimed, gauges.claimed_aside), (0, 0, 3));
    world.comes_back_from(1, Outcome::Acked);
    world.settle();
    // The third was certainly not sent; the task is beyond it.
    let delivery = world.carried.remove(1);
    world.owner.on(Event::Ended(vec![delivery.report(None)]), world.now);
    world.settle();
    world.crash();
    world.sent.clear();
    world.pass(secs(1));
    assert_eq!(nominal(&world.sent), [4], "nothing is sent twice");
    let counts = world.counts();
    assert_eq!((counts.scheduled, counts.dead, counts.dead_letters), (1, 0, 3));
    let ends: Vec<_> = history(&world, &task).iter().map(|record| record.end).collect();
    assert!(matches!(ends[1], FireEnd::Done), "{ends:?}");
}

#[test]
fn a_fire_besides_the_schedule_leaves_the_schedule_alone() {
    let mut world = World::new();
    world.schedule(every(secs(10), Series::default()));
    world.pass(secs(3));
    world.task(Command::Fire(key("s"))).unwrap();
    assert_eq!(world.sent[0].occasion, Occasion::Manual);
    ack_all(&mut world);
    world.pass(secs(20));
    assert_eq!(nominal(&world.sent), [3, 10, 20]);
}

#[test]
fn a_watch_fires_once_when_it_is_silent_and_again_after_it_was_touched() {
    let mut world = World::new();
    let task = world.schedule(watch(false));
    for _ in 0..5 {
        world.pass(secs(9));
        world.touch(key("w"), Push::Within).unwrap();
    }
    assert!(world.sent.is_empty());
    world.pass(secs(100));
    assert_eq!(nominal(&world.sent), [55]);
    ack_all(&mut world);
    assert_eq!(world.get(key("w")).unwrap().state, TaskState::Done);
    assert_eq!(world.owner.loaded(), 0);
    world.pass(secs(1000));
    let until = world.touch(key("w"), Push::Within).unwrap();
    assert_eq!(world.get(key("w")).unwrap().state, TaskState::Scheduled);
    world.pass(secs(11));
    assert_eq!((world.sent.len(), world.sent[1].fire_at), (2, until));
    ack_all(&mut world);
    assert_eq!(history(&world, &task).len(), 2);
    assert_eq!(world.cancel(key("w")).unwrap(), Cancelled::Cancelled);
    let counts = world.counts();
    assert_eq!((counts.cancelled, counts.accepted()), (1, 1));
}

#[test]
fn a_watch_that_comes_back_while_it_is_reported_silent_is_armed_and_says_so() {
    let mut world = World::new();
    world.schedule(watch(true));
    world.pass(secs(10));
    let until = world.touch(key("w"), Push::Within).unwrap();
    assert_eq!(seconds(until), 20);
    // That it is silent could not be told, and need not be told any more.
    world.comes_back(failed());
    world.pass(millis(1));
    let occasions: Vec<_> = world.sent.iter().map(|it| it.occasion).collect();
    assert_eq!(occasions, [Occasion::Due, Occasion::Return]);
    // Heartbeats go on while that is told.
    world.pass(secs(5));
    world.touch(key("w"), Push::Within).unwrap();
    ack_all(&mut world);
    assert_eq!(seconds(world.get(key("w")).unwrap().fire_at), 25);
    world.pass(secs(11));
    assert_eq!(world.sent.len(), 3);
    // A crash in between tells nobody twice what is not true any more.
    world.touch(key("w"), Push::To(Due::In(secs(30)))).unwrap();
    world.crash();
    world.pass(millis(1));
    assert_eq!(world.sent.last().unwrap().occasion, Occasion::Return);
}

#[test]
fn a_series_cannot_be_touched() {
    let mut world = World::new();
    world.schedule(every(secs(1), Series::default()));
    for push in [Push::Within, Push::To(Due::In(secs(5)))] {
        assert_eq!(world.touch(key("s"), push).unwrap_err(), EngineError::NoTouch);
    }
}
