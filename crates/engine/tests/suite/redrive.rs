//! Redrive: a dead letter is scheduled again as the same fire, with its attempts, whatever its task
//! has done since.

use std::time::Duration;

use crate::fixture::{
    OwnerFixture, PARTITION, StoreFault, failed, id, key, keyed, millis, once, ready, secs, shop,
};
use punctual_core::{
    Backoff, DeadLetter, DeadReason, FireEnd, FireRecord, Guarantee, Jitter, NewTask, Outcome,
    Reason, RetryPolicy, Schedule, Task, TaskId,
};
use punctual_engine::{Action, Cancelled, Command, EngineError, Subject, TouchTo};
use punctual_store::TaskStore;

/// Two attempts, one second apart.
fn twice() -> RetryPolicy {
    let backoff = Backoff::Fixed(secs(1));
    RetryPolicy { attempts_max: 2, backoff, jitter: Jitter::default() }
}

fn every(name: &str, interval: Duration) -> NewTask {
    NewTask { schedule: Schedule::every(interval), retry: twice(), ..keyed(name, secs(0)) }
}

fn letters(fixture: &OwnerFixture) -> Vec<DeadLetter> {
    ready(fixture.store.dead(PARTITION, &shop(), None, 99)).unwrap().items
}

fn history(fixture: &OwnerFixture, id: TaskId) -> Vec<FireRecord> {
    ready(fixture.store.history(PARTITION, id, 99)).unwrap()
}

/// Lets all attempts of the fire that is due next fail. Returns its dead letter.
fn die(fixture: &mut OwnerFixture, after: Duration) -> DeadLetter {
    fixture.advance(after);
    fixture.report(failed());
    if letters(fixture).is_empty() {
        fixture.advance(secs(1));
        fixture.report(failed());
    }
    fixture.advance(millis(1));
    letters(fixture).remove(0)
}

/// Redrives a letter as the server does.
fn redrive_letter(fixture: &mut OwnerFixture, letter: &DeadLetter) -> Result<Task, EngineError> {
    let subject = match letter.task.definition.key.clone() {
        Some(key) => Subject::Key(shop(), key),
        None => Subject::Id(shop(), letter.task.id),
    };
    fixture.task(Command::Redrive { subject, fire_id: letter.fire_id() })
}

#[test]
fn expires_after_counts_anew_from_the_redrive() {
    let mut fixture = OwnerFixture::new();
    let new_task = NewTask { expires_after: Some(secs(10)), ..keyed("order", secs(1)) };
    fixture.schedule(new_task);
    fixture.advance(secs(1));
    fixture.report(Outcome::Refused { reason: Reason::new("no") });
    fixture.advance(secs(600));
    let letter = letters(&fixture).remove(0);
    redrive_letter(&mut fixture, &letter).unwrap();
    assert_eq!(fixture.in_flight.len(), 1, "{:?}", letters(&fixture));
    // And it expires again: no retry is made ten seconds after the redrive.
    let later = Outcome::Failed { reason: Reason::new("busy"), retry_in: Some(secs(11)) };
    fixture.report(later);
    fixture.run();
    assert_eq!(letters(&fixture)[0].reason, DeadReason::Expired);
    assert_eq!(letters(&fixture)[0].fire_id(), letter.fire_id());
}

#[test]
fn the_attempts_before_a_redrive_stay_and_attempts_max_counts_anew() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(NewTask { retry: twice(), ..keyed("order", secs(1)) });
    let letter = die(&mut fixture, secs(1));
    assert_eq!(letter.task.attempts.len(), 2);
    redrive_letter(&mut fixture, &letter).unwrap();
    let again = die(&mut fixture, secs(0));
    assert_eq!(again.task.attempts.len(), 4, "two more, and the two before");
    assert_eq!(again.task.attempts[..2], letter.task.attempts[..]);
    redrive_letter(&mut fixture, &again).unwrap();
    let numbers: Vec<_> = fixture.sent.iter().map(|delivery| delivery.attempt.get()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5], "numbers are never used again");
    fixture.report(Outcome::Acked);
    fixture.run();
    let history = history(&fixture, task.id);
    assert_eq!((history.len(), history[0].attempts.len()), (1, 5));
    assert_eq!(history[0].end, FireEnd::Done);
}

#[test]
fn a_fire_that_is_redriven_a_thousand_times_does_not_grow() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(NewTask { retry: twice(), ..keyed("order", secs(1)) });
    let mut letter = die(&mut fixture, secs(1));
    for _ in 0..1000 {
        redrive_letter(&mut fixture, &letter).unwrap();
        letter = die(&mut fixture, secs(0));
    }
    let attempts = &letter.task.attempts;
    assert_eq!(attempts.len(), punctual_core::ATTEMPTS_KEPT_MAX);
    assert_eq!(attempts.last().unwrap().number.get(), 2002);
    let first = 2002 - u32::try_from(attempts.len()).unwrap() + 1;
    assert_eq!(attempts[0].number.get(), first, "the latest are kept");
    assert_eq!(history(&fixture, letter.task.id)[0].lag(), None, "the first attempt is forgotten");
}

/// Every kind of task that continues without the fire that died.
fn continuing() -> [NewTask; 2] {
    let watch = NewTask { schedule: Schedule::watch(secs(30)), ..every("w", secs(1)) };
    [every("e", secs(30)), watch]
}

#[test]
fn a_redriven_fire_of_a_series_or_a_watch_keeps_its_id_key_and_history() {
    for new_task in continuing() {
        let mut fixture = OwnerFixture::new();
        let task = fixture.schedule(new_task);
        let letter = die(&mut fixture, secs(30));
        let redriven = redrive_letter(&mut fixture, &letter).unwrap();
        let delivery = fixture.in_flight[0].clone();
        assert_eq!(delivery.fire_id, task.fire().id);
        assert_eq!(delivery.definition.key, task.definition.key);
        assert_eq!((delivery.attempt.get(), delivery.redriven), (3, true));
        assert_eq!(delivery.fire_at, task.due_at(), "due when it was");
        // The series itself is as it was.
        let living = fixture.get(id(&task)).unwrap();
        assert_eq!(
            (living.definition.key.clone(), living.id),
            (task.definition.key.clone(), task.id)
        );
        assert_eq!(
            fixture.get(id(&redriven)).unwrap().definition.key,
            None,
            "a key names one task"
        );
        fixture.report(Outcome::Acked);
        fixture.run();
        let history = history(&fixture, task.id);
        let record = history.iter().find(|record| record.fire_id == task.fire().id).unwrap();
        assert_eq!((record.end, record.attempts.len()), (FireEnd::Done, 3));
        assert_eq!(record.key, task.definition.key);
        assert_eq!(fixture.get(id(&task)).unwrap().id, task.id, "its key was not freed");
        assert!(fixture.get(Subject::Key(shop(), task.definition.key.clone().unwrap())).is_ok());
        let counts = fixture.counts();
        assert_eq!((counts.dead_letters, counts.accepted()), (0, 2));
    }
}

#[test]
fn a_redriven_fire_of_a_series_dies_again_under_its_id_and_is_redriven_again() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(every("e", secs(3600)));
    let mut letter = die(&mut fixture, secs(3600));
    for round in 1..4 {
        redrive_letter(&mut fixture, &letter).unwrap();
        let again = redrive_letter(&mut fixture, &letter);
        assert_eq!(again, Err(EngineError::DeadLetterNotFound), "once");
        letter = die(&mut fixture, secs(0));
        assert_eq!(letter.fire_id(), task.fire().id);
        assert_eq!(letter.task.attempts.len(), 2 + 2 * round);
        assert_eq!(letters(&fixture).len(), 1);
        assert_eq!(history(&fixture, task.id).len(), 1, "one record per fire");
    }
    let counts = fixture.counts();
    assert_eq!((counts.scheduled, counts.dead, counts.dead_letters), (1, 1, 1));
}

#[test]
fn a_redriven_fire_survives_the_end_of_its_series_a_crash_and_a_hand_over() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        let mut fixture = OwnerFixture::new();
        let task = fixture.schedule(NewTask { guarantee, ..every("e", secs(3600)) });
        let letter = die(&mut fixture, secs(3600));
        assert_eq!(fixture.cancel(key("e")), Ok(Cancelled::Cancelled));
        let redriven = redrive_letter(&mut fixture, &letter).unwrap();
        assert_eq!(fixture.in_flight[0].fire_id, task.fire().id);
        fixture.hand_over();
        assert_eq!(fixture.sent.iter().filter(|it| it.redriven).count(), 1, "not sent again");
        assert_eq!(fixture.in_flight.len(), 1);
        fixture.report(failed());
        fixture.advance(secs(1));
        if guarantee == Guarantee::AtMostOnce {
            let letter = letters(&fixture).remove(0);
            assert_eq!((letter.fire_id(), letter.reason), (task.fire().id, DeadReason::Exhausted));
            continue;
        }
        assert_eq!(fixture.in_flight[0].attempt.get(), 4);
        fixture.crash();
        fixture.advance(secs(0));
        assert_eq!(fixture.in_flight.len(), 1, "sent again after a crash");
        let delivery = &fixture.in_flight[0];
        assert_eq!((delivery.fire_id, delivery.attempt.get()), (task.fire().id, 4));
        fixture.report(Outcome::Acked);
        fixture.run();
        assert_eq!(fixture.get(id(&redriven)), Err(EngineError::NotFound));
        let record = &history(&fixture, task.id)[0];
        assert!(history(&fixture, task.id).iter().any(|record| record.end == FireEnd::Done));
        assert!(record.fire_id.task == task.id);
        assert_eq!(fixture.owner.loaded(), 0);
    }
}

#[test]
fn an_at_most_once_fire_of_a_series_is_sent_once_per_redrive() {
    let mut fixture = OwnerFixture::new();
    let guarantee = Guarantee::AtMostOnce;
    let task = fixture.schedule(NewTask { guarantee, ..every("e", secs(3600)) });
    fixture.advance(secs(3600));
    fixture.crash();
    fixture.advance(secs(1));
    let letter = letters(&fixture).remove(0);
    assert_eq!(letter.reason, DeadReason::Unknown);
    redrive_letter(&mut fixture, &letter).unwrap();
    assert_eq!(fixture.in_flight[0].fire_id, task.fire().id);
    let claimed = redrive_letter(&mut fixture, &letter);
    assert_eq!(claimed, Err(EngineError::DeadLetterNotFound), "it may still arrive");
    // Not sent after all: it is sent when there is capacity, and once.
    fixture.report_unsent();
    fixture.advance(secs(1));
    assert_eq!(fixture.in_flight.len(), 1);
    fixture.crash();
    fixture.advance(secs(60));
    assert_eq!(fixture.in_flight.len(), 0, "not sent again");
    let letter = letters(&fixture).remove(0);
    assert_eq!((letter.fire_id(), letter.reason), (task.fire().id, DeadReason::Unknown));
}

#[test]
fn a_redriven_fire_of_a_series_is_cancelled_by_its_own_id() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(every("e", secs(3600)));
    let letter = die(&mut fixture, secs(3600));
    let redriven = redrive_letter(&mut fixture, &letter).unwrap();
    assert_eq!(fixture.cancel(id(&redriven)), Ok(Cancelled::Firing(fixture.in_flight[0].attempt)));
    fixture.report(failed());
    fixture.run();
    assert_eq!(fixture.cancel(id(&redriven)), Ok(Cancelled::Cancelled));
    fixture.advance(secs(60));
    assert_eq!(fixture.in_flight.len(), 0);
    let record = &history(&fixture, task.id)[0];
    assert_eq!((record.fire_id, record.end), (task.fire().id, FireEnd::Cancelled));
    assert_eq!(record.attempts.len(), 3);
    assert!(fixture.get(key("e")).is_ok(), "the series continues");
}

#[test]
fn touching_or_firing_a_redriven_fire_of_a_series_keeps_its_id() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(every("e", secs(3600)));
    let letter = die(&mut fixture, secs(3600));
    let redriven = redrive_letter(&mut fixture, &letter).unwrap();
    fixture.report(failed());
    let push = TouchTo::To(punctual_core::Due::In(secs(100)));
    fixture.touch(id(&redriven), push).unwrap();
    fixture.advance(secs(99));
    assert_eq!(fixture.in_flight.len(), 0);
    fixture.task(Command::Fire(id(&redriven))).unwrap();
    assert_eq!(fixture.in_flight[0].fire_id, task.fire().id);
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(history(&fixture, task.id)[0].attempts.len(), 4);
    assert_eq!(fixture.get(id(&redriven)), Err(EngineError::NotFound), "it fired once");
}

#[test]
fn a_redriven_task_that_is_touched_is_another_fire() {
    let mut fixture = OwnerFixture::new();
    let new_task = NewTask { retry: twice(), ..once(secs(1)) };
    let task = fixture.schedule(new_task);
    let letter = die(&mut fixture, secs(1));
    fixture.set_capacity(0);
    redrive_letter(&mut fixture, &letter).unwrap();
    let push = TouchTo::To(punctual_core::Due::In(secs(100)));
    fixture.touch(id(&task), push).unwrap();
    fixture.set_capacity(9);
    fixture.advance(secs(100));
    let delivery = &fixture.in_flight[0];
    assert_ne!(delivery.fire_id, task.fire().id);
    assert_eq!((delivery.attempt.get(), delivery.redriven), (1, false));
}

#[test]
fn a_redrive_that_a_full_store_refuses_leaves_the_next_fire_of_the_series_alone() {
    let mut fixture = OwnerFixture::new();
    let guarantee = Guarantee::AtMostOnce;
    fixture.schedule(NewTask { guarantee, ..every("e", secs(10)) });
    let letter = die(&mut fixture, secs(10));
    fixture.fault = StoreFault::FullForNewTasks;
    let redrive = Command::Redrive { subject: key("e"), fire_id: letter.fire_id() };
    let mut reply = fixture.send_for_task(redrive);
    fixture.perform(0);
    assert!(matches!(fixture.actions[..], [Action::Apply(_)]), "{:?}", fixture.actions);
    // The next fire is due and claimed while the redrive is being written.
    fixture.now = letter.task.nominal_at.after(secs(10));
    fixture.act();
    fixture.perform(0);
    assert!(matches!(reply.try_recv(), Ok(Err(EngineError::Full(_)))));
    fixture.run();
    let sent: Vec<_> = fixture.sent.iter().map(|it| it.fire_id.nominal_at).collect();
    assert_eq!(sent, [letter.task.nominal_at, letter.task.nominal_at.after(secs(10))]);
    assert_eq!(letters(&fixture).len(), 2, "the letter, and the claim");
    fixture.fault = StoreFault::None;
    redrive_letter(&mut fixture, &letter).unwrap();
    assert_eq!(fixture.sent.last().unwrap().fire_id, letter.fire_id());
}
