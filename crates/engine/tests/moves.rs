//! A partition that moves: leases that end, hand-overs with deliveries under way, owners that end, and a store that forgets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod world;

use std::time::Duration;

use punctual_core::{
    AttemptNo, DeadReason, Due, FireEnd, FireRecord, Guarantee, NewTask, Outcome, PartitionId,
    Schedule, Series, Task, TaskState,
};
use punctual_engine::{
    Action, Cancelled, Command, Condition, EngineError, Event, HAND_OVER_WAIT, InFlight, Push,
    Report, Scheduled, StoredAs,
};
use punctual_store::{Batch, StoreError, TaskStore};
use world::{Reply, Weather, World, failed, id, key, millis, named, once, ready, secs, shop};

const LEASE: Duration = secs(5);

fn at_most_once(new_task: NewTask) -> NewTask {
    NewTask { guarantee: Guarantee::AtMostOnce, ..new_task }
}

fn history(world: &World, task: &Task) -> Vec<FireRecord> {
    ready(world.store.history(PartitionId::FIRST, task.id, 9)).unwrap()
}

fn end_of(world: &World, task: &Task) -> FireEnd {
    history(world, task)[0].end
}

/// A task whose first attempt is under way.
fn under_way(world: &mut World, new_task: NewTask) -> Task {
    let task = world.schedule(new_task);
    world.pass(secs(1));
    assert_eq!(world.carried.last().unwrap().fire_id.task, task.id);
    task
}

#[test]
fn what_is_under_way_is_not_sent_again_by_the_next_owner() {
    let mut world = World::new();
    let task = under_way(&mut world, named("order", secs(1)));
    world.hand_over();
    world.pass(secs(5));
    assert_eq!((world.sent.len(), world.moves), (1, 1));
    assert_eq!(world.get(key("order")).unwrap().state, TaskState::Firing);
    assert!(matches!(world.cancel(id(&task)), Ok(Cancelled::Firing(_))));
    assert_eq!(world.gauges().firing, 1);
    world.comes_back(Outcome::Acked);
    world.settle();
    assert_eq!(end_of(&world, &task), FireEnd::Done);
    assert_eq!((world.gauges().inflight, world.counts().done), (0, 1));
}

#[test]
fn a_failure_that_is_passed_on_is_an_attempt_and_the_next_owner_tries_again() {
    let mut world = World::new();
    let task = under_way(&mut world, once(secs(1)));
    world.hand_over();
    world.comes_back(failed());
    world.pass(secs(60));
    assert_eq!(world.carried.len(), 1);
    assert_eq!(world.carried[0].attempt.get(), 2);
    world.hand_over();
    world.comes_back(Outcome::Acked);
    world.settle();
    assert_eq!(history(&world, &task)[0].attempts.len(), 2);
}

#[test]
fn what_nobody_reports_is_expired_when_its_time_is_over() {
    let mut world = World::new();
    under_way(&mut world, NewTask { timeout: secs(3), ..once(secs(1)) });
    world.hand_over();
    world.pass(secs(7));
    assert_eq!(world.sent.len(), 1, "its time, and a little");
    world.pass(secs(60));
    assert_eq!(world.sent[1].attempt.get(), 2);
    // Whatever is said of the first attempt now changes nothing.
    world.comes_back_from(0, Outcome::Acked);
    world.settle();
    assert_eq!(world.gauges().inflight, 1);
    world.comes_back(Outcome::Acked);
    world.settle();
    assert_eq!((world.gauges().inflight, world.counts().done), (0, 1));
}

#[test]
fn a_hand_over_waits_a_little_for_what_is_under_way_and_not_at_all_for_nothing() {
    let mut world = World::new();
    world.settle();
    let start = world.now;
    world.start_hand_over();
    assert_eq!((world.moves, world.now), (1, start), "at once");
    let task = under_way(&mut world, once(secs(1)));
    world.start_hand_over();
    world.now = world.now.after(HAND_OVER_WAIT - millis(1));
    world.settle();
    assert_eq!(world.moves, 1);
    world.comes_back(Outcome::Acked);
    world.settle();
    assert_eq!(world.moves, 2, "as soon as it is written");
    assert_eq!(end_of(&world, &task), FireEnd::Done);
    assert_eq!(world.owner.wakes_at().map(|at| at > world.now), Some(true));
}

#[test]
fn what_comes_while_the_last_is_being_written_is_passed_on() {
    let mut world = World::new();
    let (one, other) = (once(secs(1)), once(secs(1)));
    let tasks = [world.schedule(one), world.schedule(other)];
    world.pass(secs(1));
    world.start_hand_over();
    world.comes_back(Outcome::Acked);
    world.now = world.now.after(HAND_OVER_WAIT);
    world.act();
    assert_eq!(world.moves, 0, "the first outcome is on its way to the store");
    world.comes_back(Outcome::Acked);
    assert_eq!(world.strays, []);
    world.settle();
    assert_eq!(world.moves, 1);
    for task in &tasks {
        assert_eq!(end_of(&world, task), FireEnd::Done);
    }
    assert_eq!((world.sent.len(), world.gauges().inflight), (2, 0));
}

#[test]
fn calls_that_were_taken_are_answered_and_later_ones_refused() {
    let mut world = World::new();
    world.settle();
    let mut taken = world.send_schedule(named("a", secs(9)), Condition::Always);
    world.start_hand_over();
    let mut later = world.send_schedule(named("b", secs(9)), Condition::Always);
    assert_eq!(later.try_recv().unwrap(), Err(EngineError::Stopped));
    world.settle();
    assert!(taken.try_recv().unwrap().is_ok());
    assert_eq!(world.moves, 1);
    assert!(world.get(key("a")).is_ok());
    assert_eq!(world.get(key("b")), Err(EngineError::NotFound));
}

#[test]
fn calls_wait_until_what_is_under_way_is_known() {
    let mut world = World::new();
    let task = under_way(&mut world, at_most_once(named("order", secs(1))));
    world.start_hand_over();
    while world.is_handing_over() {
        world.go_on();
    }
    // The letter is still being read.
    let mut cancelled = world.send_cancel(key("order"));
    assert!(cancelled.try_recv().is_err());
    world.settle();
    assert!(matches!(cancelled.try_recv().unwrap(), Ok(Cancelled::Firing(_))));
    assert_eq!(world.get(id(&task)).unwrap().state, TaskState::Firing);
}

#[test]
fn an_owner_that_is_still_taking_over_hands_on_what_it_was_told() {
    let mut world = World::new();
    under_way(&mut world, at_most_once(once(secs(1))));
    under_way(&mut world, once(secs(1)));
    world.hand_over();
    // Nothing is read in this weather.
    world.start_hand_over();
    world.now = world.now.after(HAND_OVER_WAIT);
    world.act();
    assert_eq!(world.moves, 2);
    world.start_hand_over();
    world.now = world.now.after(HAND_OVER_WAIT);
    world.act();
    assert_eq!(world.moves, 3);
    world.pass(secs(1));
    world.comes_back(Outcome::Acked);
    world.comes_back(Outcome::Acked);
    world.pass(secs(60));
    assert_eq!((world.sent.len(), world.counts().done, world.counts().dead), (2, 2, 0));
}

#[test]
fn at_most_once_has_its_true_end_although_its_owner_has_changed() {
    for (outcome, end) in [
        (Outcome::Acked, FireEnd::Done),
        (failed(), FireEnd::Dead(DeadReason::Exhausted)),
        (Outcome::Expired, FireEnd::Dead(DeadReason::Unknown)),
    ] {
        let mut world = World::new();
        let task = under_way(&mut world, at_most_once(named("order", secs(1))));
        let fire_id = task.fire().id;
        world.hand_over();
        assert_eq!(end_of(&world, &task), FireEnd::Dead(DeadReason::Unknown));
        assert_eq!((world.gauges().claimed, world.gauges().firing), (1, 0));
        let redrive = Command::Redrive { subject: key("order"), fire_id };
        assert_eq!(world.task(redrive), Err(EngineError::NoLetter), "it may still arrive");
        world.comes_back(outcome);
        world.pass(secs(60));
        assert_eq!((end_of(&world, &task), world.sent.len()), (end, 1));
        assert_eq!((world.gauges().claimed, world.gauges().inflight), (0, 0));
        assert_eq!(world.counts().accepted(), 1);
    }
}

#[test]
fn at_most_once_that_was_not_sent_comes_back_at_the_next_owner_unless_it_was_replaced() {
    for replaced in [false, true] {
        let mut world = World::new();
        let task = under_way(&mut world, at_most_once(named("order", secs(1))));
        if replaced {
            // The one that took its name has ended since.
            let other = world.schedule(named("order", secs(50)));
            assert_eq!(world.cancel(id(&other)), Ok(Cancelled::Cancelled));
        }
        world.hand_over();
        world.returned();
        world.pass(secs(1));
        assert_eq!(world.carried.len(), usize::from(!replaced), "{replaced}");
        if replaced {
            assert_eq!(end_of(&world, &task), FireEnd::Replaced);
        }
    }
}

#[test]
fn at_most_once_that_goes_on_goes_on_at_the_next_owner() {
    let mut world = World::new();
    let series = Series { count: Some(2), ..Series::default() };
    let schedule = Schedule::Every { interval: secs(10), series: series.into() };
    let task = world.schedule(at_most_once(NewTask { schedule, ..named("s", secs(0)) }));
    world.pass(secs(10));
    assert_eq!(world.carried.len(), 1);
    world.hand_over();
    assert_eq!(world.gauges().claimed_aside, 1);
    world.comes_back(Outcome::Acked);
    world.pass(secs(10));
    world.comes_back(Outcome::Acked);
    world.settle();
    let ends: Vec<_> = history(&world, &task).iter().map(|record| record.end).collect();
    assert_eq!(ends, [FireEnd::Done, FireEnd::Done]);
}

#[test]
fn fires_that_overlap_are_all_under_way_at_the_next_owner() {
    let mut world = World::new();
    let series = Series { count: Some(4), ..Series::default() };
    let schedule = Schedule::Every { interval: secs(2), series: series.into() };
    let task = world.schedule(NewTask { schedule, ..named("s", secs(0)) });
    world.pass(secs(6));
    assert_eq!(world.carried.len(), 3, "the store knows of the first only");
    world.hand_over();
    assert_eq!((world.gauges().inflight, world.gauges().firing), (3, 1));
    world.comes_back_from(1, Outcome::Acked);
    world.hand_over();
    world.pass(secs(3));
    assert_eq!(world.sent.len(), 4);
    for _ in 0..3 {
        world.comes_back(Outcome::Acked);
    }
    world.pass(secs(60));
    assert_eq!((world.sent.len(), history(&world, &task).len()), (4, 4));
    assert_eq!((world.counts().done, world.owner.loaded()), (1, 0));
}

#[test]
fn a_task_that_was_paused_on_its_way_is_done_at_the_next_owner() {
    let mut world = World::new();
    let task = under_way(&mut world, named("order", secs(1)));
    world.task(Command::Pause(key("order"))).unwrap();
    world.hand_over();
    world.comes_back(Outcome::Acked);
    world.settle();
    assert_eq!(end_of(&world, &task), FireEnd::Done);
}

#[test]
fn flights_of_what_is_no_longer_there_are_dropped_and_so_are_reports_that_nobody_waits_for() {
    let mut world = World::new();
    let task = world.schedule(once(secs(50)));
    let fire_id = task.fire().id;
    let (attempt, fired_at) = (AttemptNo::new(2), world.now);
    let until = fired_at.after(secs(60));
    let flight = |stands| InFlight { fire_id, namespace: shop(), attempt, fired_at, until, stands };
    let claimed = StoredAs::Claimed { task_continues: false, key_reused: false };
    world.crash();
    world.owner.adopt(vec![flight(StoredAs::Filed), flight(claimed), flight(claimed)]);
    world.settle();
    assert_eq!(world.gauges().inflight, 0, "another attempt, and no letter");
    let stray = Report::of(fire_id, task.attempt_next(), fired_at, Some(Outcome::Acked));
    world.owner.on(Event::Ended(vec![stray]), world.now);
    world.pass(secs(50));
    assert_eq!(world.carried.len(), 1);
}

#[test]
fn what_is_over_while_it_is_handed_on_is_left_to_the_next_owner() {
    let mut world = World::new();
    under_way(&mut world, NewTask { timeout: millis(100), ..once(secs(1)) });
    world.hand_over();
    // Its time, and a little, are over in the middle of the next hand-over.
    world.pass(secs(5));
    world.weather = Weather::Away;
    let created = world.send_schedule(once(secs(500)), Condition::Always);
    world.start_hand_over();
    world.now = world.now.after(millis(200));
    world.act();
    assert!(world.owner.wakes_at().unwrap() > world.now, "not a busy loop");
    world.weather = Weather::Fair;
    world.pass(secs(1));
    assert_eq!((world.moves, world.sent.len()), (2, 1));
    drop(created);
    world.pass(secs(60));
    assert_eq!(world.sent[1].attempt.get(), 2);
}

#[test]
fn a_hand_over_that_cannot_write_ends_in_time_and_says_what_is_not_known() {
    let mut world = World::new();
    world.settle();
    world.weather = Weather::Away;
    let mut on_its_way = world.send_schedule(once(secs(9)), Condition::Always);
    let mut waits = world.send_schedule(once(secs(9)), Condition::Always);
    let mut undecided = world.send_cancel(key("order"));
    let (reply, mut flights) = tokio::sync::oneshot::channel();
    world.owner.on(Event::HandOver(reply), world.now);
    world.pass(secs(1));
    assert!(flights.try_recv().is_err());
    world.pass(secs(2));
    assert_eq!(flights.try_recv().unwrap(), Err(EngineError::Lost));
    assert!(world.ended);
    assert_eq!(on_its_way.try_recv().unwrap(), Err(EngineError::Lost));
    assert_eq!(waits.try_recv().unwrap(), Err(EngineError::Stopped), "never sent to the store");
    assert_eq!(undecided.try_recv().unwrap(), Err(EngineError::Stopped));
}

#[test]
fn an_owner_that_is_told_to_end_writes_nothing_more_and_passes_on_what_comes() {
    let mut world = World::new();
    under_way(&mut world, once(secs(1)));
    let mut on_its_way = world.send_schedule(once(secs(9)), Condition::Always);
    world.owner.on(Event::End, world.now);
    world.act();
    assert!(world.ended);
    assert_eq!(on_its_way.try_recv().unwrap(), Err(EngineError::Lost));
    let mut later = world.send_cancel(key("order"));
    assert_eq!(later.try_recv().unwrap(), Err(EngineError::Stopped));
    world.wanted.clear();
    let delivery = world.comes_back(Outcome::Acked);
    assert_eq!(world.wanted.len(), 0);
    let passed_on =
        Report::of(delivery.fire_id, delivery.attempt, delivery.fired_at, Some(Outcome::Acked));
    assert_eq!(world.strays, [passed_on]);
}

#[test]
fn a_batch_in_doubt_that_is_fenced_may_have_been_made_all_the_same() {
    let mut world = World::new();
    world.settle();
    world.weather = Weather::AnswerLost;
    let mut in_doubt = world.send_schedule(once(secs(9)), Condition::Always);
    world.settle();
    world.weather = Weather::Fair;
    let old = world.ownership.epoch;
    let mine = std::mem::replace(&mut world.owner, World::new().owner);
    world.crash();
    (world.owner, world.ownership.epoch) = (mine, old);
    world.now = world.now.after(secs(1));
    world.settle();
    assert!(world.stopped.is_some());
    assert_eq!(in_doubt.try_recv().unwrap(), Err(EngineError::Lost));
}

#[test]
fn past_its_lease_an_owner_does_nothing_until_it_is_extended() {
    let mut world = World::new();
    world.lease_for(LEASE);
    world.schedule(named("order", secs(7)));
    world.schedule(at_most_once(once(secs(7))));
    assert_eq!(world.owner.wakes_at().map(|at| at > world.now), Some(true));
    // `pass` stops at a busy loop, and the world at whatever is sent.
    world.pass(secs(10));
    assert_eq!((world.sent.len(), world.wanted.len()), (0, 0));
    assert_eq!(world.get(key("order")), Err(EngineError::Stopped));
    assert_eq!(world.owner.wakes_at(), None);
    world.renew();
    world.settle();
    assert_eq!(world.sent.len(), 2);
    assert!(world.sent.iter().all(|delivery| delivery.lease_end.get() == world.ownership.until));
    assert!(world.get(key("order")).is_ok());
}

#[test]
fn what_is_to_be_asked_again_takes_along_what_was_asked_after_it() {
    let mut world = World::new();
    world.lease_for(LEASE);
    world.schedule(named("order", secs(60)));
    let mut touched = world.send_touch(key("order"), Push::To(Due::In(secs(90))));
    let mut shown = world.send_for_task(Command::Get(key("order")));
    world.act();
    // The store is asked about the task, and answers when the lease is over.
    world.now = world.ownership.until;
    world.perform(0);
    world.renew();
    world.settle();
    assert_eq!(touched.try_recv(), Ok(Err(EngineError::Stopped)));
    // By itself it would show the task as it was before the touch, which is about to be asked for again.
    assert_eq!(shown.try_recv(), Ok(Err(EngineError::Stopped)));
    assert!(world.get(key("order")).is_ok());
}

#[test]
fn what_was_decided_within_the_lease_is_written_after_it_and_the_rest_refused() {
    let mut world = World::new();
    world.lease_for(LEASE);
    world.settle();
    let mut decided = world.send_schedule(once(secs(9)), Condition::Always);
    let mut undecided = world.send_schedule(named("order", secs(9)), Condition::Always);
    world.now = world.now.after(LEASE);
    world.settle();
    assert!(decided.try_recv().unwrap().is_ok());
    assert_eq!(undecided.try_recv().unwrap(), Err(EngineError::Stopped));
}

#[test]
fn nobody_waits_for_a_store_that_is_away_once_the_lease_is_over() {
    let mut world = World::new();
    world.lease_for(LEASE);
    world.settle();
    world.weather = Weather::Away;
    let mut asked = [world.send_cancel(key("order")), world.send_cancel(key("order"))];
    world.pass(LEASE - millis(1));
    assert!(asked.iter_mut().all(|answer| answer.try_recv().is_err()));
    world.pass(millis(200));
    for answer in &mut asked {
        assert_eq!(answer.try_recv().unwrap(), Err(EngineError::Stopped));
    }
}

#[test]
fn a_claim_that_is_durable_when_the_lease_is_over_is_not_sent_and_taken_back() {
    let mut world = World::new();
    world.lease_for(LEASE);
    let task = world.schedule(at_most_once(once(secs(4))));
    world.now = world.now.after(secs(4));
    world.act();
    assert_eq!(world.wanted.len(), 1, "the claim");
    world.now = world.now.after(secs(2));
    world.settle();
    assert_eq!(world.sent.len(), 0);
    assert!(ready(world.store.get(PartitionId::FIRST, &[task.id])).unwrap()[0].is_some());
    world.renew();
    world.settle();
    assert_eq!(world.sent.len(), 1);
}

#[test]
fn a_store_that_has_forgotten_is_sent_again_what_is_missing() {
    let mut world = World::new();
    let fired = under_way(&mut world, named("fired", secs(1)));
    for name in ["a", "b", "c"] {
        world.schedule(named(name, secs(50)));
    }
    world.comes_back(Outcome::Acked);
    world.settle();
    assert_eq!(world.cancel(key("b")), Ok(Cancelled::Cancelled));
    let counts = world.counts();
    world.rewind(4);
    assert_ne!(world.counts(), counts);
    let mut refused = world.send_schedule(named("d", secs(50)), Condition::Always);
    world.settle();
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped), "to be asked again");
    world.schedule(named("d", secs(50)));
    assert_eq!(end_of(&world, &fired), FireEnd::Done);
    assert_eq!(world.counts().scheduled, 3);
    assert_eq!((world.counts().done, world.counts().cancelled), (counts.done, counts.cancelled));
    // It forgets, is away and has no room in the middle of it.
    world.rewind(3);
    let mut refused = world.send_schedule(named("e", secs(50)), Condition::Always);
    for weather in [Weather::Fair, Weather::Fair, Weather::AnswerLost, Weather::Full] {
        world.weather = weather;
        world.now = world.now.after(millis(100));
        world.act();
        if !world.wanted.is_empty() {
            world.perform(0);
        }
    }
    world.weather = Weather::Fair;
    world.pass(secs(1));
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped));
    world.schedule(named("e", secs(50)));
    assert_eq!(world.counts().scheduled, 4);
    assert!(world.stopped.is_none());
}

#[test]
fn what_a_store_said_while_it_had_forgotten_is_not_believed() {
    let mut world = World::new();
    let first = world.schedule(named("a", secs(50)));
    world.rewind(1);
    // It knows of no such name, and so it would be a second task of that name.
    let mut refused = world.send_schedule(named("a", secs(40)), Condition::Always);
    let mut unnamed = world.send_schedule(once(secs(50)), Condition::Always);
    world.settle();
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped));
    assert!(unnamed.try_recv().unwrap().is_ok(), "rests on nothing");
    assert_eq!(world.get(key("a")).unwrap(), first);
    let second = world.schedule(named("a", secs(40)));
    assert_eq!(end_of(&world, &first), FireEnd::Replaced);
    world.pass(secs(50));
    let fired: Vec<_> = world.sent.iter().map(|delivery| delivery.fire_id.task).collect();
    assert_eq!((fired.len(), fired[0]), (2, second.id));
}

#[test]
fn a_store_that_forgets_the_same_a_second_time_is_sent_it_a_second_time() {
    let mut world = World::new();
    world.schedule(named("a", secs(50)));
    for _ in 0..2 {
        world.rewind(world.batches());
        assert_eq!(world.counts().scheduled, 0);
        // Nobody writes; the owner asks whether all is there.
        world.pass(secs(3));
        assert_eq!(world.counts().scheduled, 1);
    }
}

#[test]
fn a_task_that_was_forgotten_while_its_time_was_read_fires() {
    let mut world = World::new();
    world.pass(secs(8));
    let task = world.schedule(once(secs(34)));
    world.pass(secs(6));
    world.schedule(once(secs(3600)));
    // The next page passes its time before anybody notices that the store does not have it (nor the batch that asked meanwhile).
    world.rewind(3);
    let page = world.loads_until(world.now.after(secs(1)));
    assert!(page > task.fire_at);
    world.pass(secs(60));
    let fired: Vec<_> = world.sent.iter().map(|delivery| delivery.fire_id.task).collect();
    assert_eq!(fired, [task.id], "{:?}", world.stopped);
}

#[test]
fn a_store_that_has_forgotten_more_than_is_kept_stops_the_owner() {
    let mut world = World::new();
    for name in ["a", "b"] {
        world.schedule(named(name, secs(500)));
        world.pass(secs(11));
    }
    world.rewind(2);
    let mut refused = world.send_schedule(named("c", secs(50)), Condition::Always);
    world.settle();
    assert!(world.stopped.is_some());
    assert_eq!(refused.try_recv().unwrap(), Err(EngineError::Stopped), "nothing was done");
}

/// A store that has forgotten the task "a", and a task of a name whose batch was sent without an answer: the call, and what may still
/// come to the store.
fn in_doubt_over_a_failover(world: &mut World, name: &str) -> (Reply<Scheduled>, Batch) {
    world.schedule(named("a", secs(50)));
    world.rewind(1);
    let asked = world.send_schedule(named(name, secs(40)), Condition::Always);
    world.perform(0);
    let late = world.send_unanswered();
    world.now = world.now.after(millis(100));
    world.act();
    (asked, late)
}

/// The store answers the batch that is wanted.
fn answers(world: &mut World) {
    let apply = |action: &Action| matches!(action, Action::Apply(_));
    let apply = world.wanted.iter().position(apply).unwrap();
    world.perform(apply);
}

#[test]
fn a_first_sending_that_comes_after_the_repair_is_what_its_caller_is_told() {
    let mut world = World::new();
    let (mut asked, late) = in_doubt_over_a_failover(&mut world, "b");
    answers(&mut world);
    answers(&mut world);
    assert!(asked.try_recv().is_err(), "whoever answers now would have to guess");
    world.make(late).unwrap();
    world.settle();
    let Ok(Scheduled::Created(task)) = asked.try_recv().unwrap() else {
        panic!("made and not answered as made")
    };
    assert_eq!(world.get(key("b")), Ok(task));
    assert_eq!(world.counts().scheduled, 2);
    world.pass(secs(60));
    assert_eq!(world.sent.len(), 2, "{:?}", world.stopped);
}

#[test]
fn what_may_be_on_its_way_and_wrong_ends_the_owner_after_the_repair() {
    let mut world = World::new();
    // The store knows of no such name, and so it would be a second task of that name.
    let (mut asked, late) = in_doubt_over_a_failover(&mut world, "a");
    answers(&mut world);
    let mut unnamed = world.send_schedule(once(secs(50)), Condition::Always);
    answers(&mut world);
    answers(&mut world);
    assert!(matches!(world.stopped, Some(StoreError::Gap { .. })), "{:?}", world.stopped);
    assert_eq!(asked.try_recv().unwrap(), Err(EngineError::Lost));
    assert_eq!(unnamed.try_recv().unwrap(), Err(EngineError::Stopped), "never sent");
    let old = world.ownership.epoch;
    let comes = |world: &World| ready(world.store.apply(PartitionId::FIRST, old, late.clone()));
    assert!(comes(&world).is_ok(), "its number was made");
    world.crash();
    assert!(matches!(comes(&world), Err(StoreError::Fenced { .. })));
    assert_eq!(world.counts().scheduled, 1, "what was answered is there, and nothing else");
    world.pass(secs(60));
    assert_eq!(world.sent.len(), 1);
}

#[test]
fn nobody_is_told_that_there_is_no_room_while_an_earlier_sending_may_find_some() {
    let mut world = World::new();
    world.settle();
    let mut created = world.send_schedule(once(secs(9)), Condition::Always);
    let late = world.send_unanswered();
    world.weather = Weather::Full;
    world.pass(millis(100));
    assert!(matches!(world.stopped, Some(StoreError::Full { .. })), "{:?}", world.stopped);
    assert_eq!(created.try_recv().unwrap(), Err(EngineError::Lost));
    world.make(late).unwrap();
    (world.weather, world.stopped) = (Weather::Fair, None);
    world.crash();
    world.pass(secs(9));
    assert_eq!(world.sent.len(), 1);
}

#[test]
fn what_brings_no_task_waits_for_room_as_it_was_sent() {
    let mut world = World::new();
    world.schedule(named("a", secs(50)));
    let mut cancelled = world.send_cancel(key("a"));
    world.perform(0);
    world.send_unanswered();
    world.weather = Weather::Full;
    world.pass(secs(1));
    world.weather = Weather::Fair;
    world.pass(secs(1));
    assert_eq!(cancelled.try_recv().unwrap(), Ok(Cancelled::Cancelled));
    assert!(world.stopped.is_none());
}
