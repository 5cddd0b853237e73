//! Cancelling a key that names no task any more: the reply is about the last task that had it.

use crate::fixture::{
    OwnerFixture, PARTITION, START, failed, id, key, keyed, millis, ready, secs, shop,
};
use punctual_core::{
    Backoff, FireEnd, FireRecord, Guarantee, Jitter, Misfire, NewTask, Outcome, RetryPolicy,
    Schedule, Series, TaskKey,
};
use punctual_engine::{
    Action, Cancelled, Command, Condition, EngineError, Lookup, LookupDepth, Subject, TouchTo,
};
use punctual_store::TaskStore;

fn record_of(fixture: &OwnerFixture, name: &str) -> FireRecord {
    let keys = [TaskKey::new(name).unwrap()];
    ready(fixture.store.last_fires(PARTITION, &shop(), &keys)).unwrap().remove(0).unwrap()
}

fn twice() -> RetryPolicy {
    let backoff = Backoff::Fixed(secs(1));
    RetryPolicy { attempts_max: 2, backoff, jitter: Jitter::default() }
}

#[test]
fn a_key_whose_task_has_fired_answers_when() {
    let mut fixture = OwnerFixture::new();
    assert_eq!(fixture.cancel(key("order")), Err(EngineError::NotFound), "it never was");
    fixture.schedule(keyed("order", secs(1)));
    fixture.advance(secs(1));
    let first = fixture.now;
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(fixture.cancel(key("order")), Ok(Cancelled::AlreadyFired(first)));
    assert_eq!(fixture.get(key("order")), Err(EngineError::NotFound), "the server has the record");
    // The last life counts, and of its fire the first attempt.
    fixture.schedule(NewTask { retry: twice(), ..keyed("order", secs(1)) });
    fixture.advance(secs(1));
    let second = fixture.now;
    fixture.report(failed());
    fixture.advance(secs(1));
    fixture.report(failed());
    fixture.run();
    assert_eq!(record_of(&fixture, "order").attempts.len(), 2);
    assert_eq!(fixture.cancel(key("order")), Ok(Cancelled::AlreadyFired(second)));
    // A living task is cancelled, and then the key answers as its id does.
    let third = fixture.schedule(keyed("order", secs(1)));
    for subject in [key("order"), key("order"), id(&third)] {
        assert_eq!(fixture.cancel(subject), Ok(Cancelled::Cancelled));
    }
    fixture.advance(secs(60));
    assert!(fixture.in_flight.is_empty());
}

#[test]
fn a_task_that_ended_without_an_attempt_answers_when_it_ended() {
    let mut fixture = OwnerFixture::new();
    fixture.set_capacity(0);
    fixture.schedule(NewTask { expires_after: Some(secs(1)), ..keyed("late", secs(1)) });
    let series =
        Series { ends_at: Some(START.after(secs(2))), misfire: Misfire::Skip, ..Series::default() };
    let schedule = Schedule::Every { interval: secs(1), series: series.into() };
    fixture.schedule(NewTask { schedule, ..keyed("missed", secs(0)) });
    fixture.advance(secs(30));
    fixture.set_capacity(256);
    fixture.advance(secs(1));
    for name in ["late", "missed"] {
        let record = record_of(&fixture, name);
        assert!(!matches!(record.end, FireEnd::Done | FireEnd::Cancelled), "{record:?}");
        let want = Ok(Cancelled::AlreadyFired(record.ended_at));
        assert_eq!(fixture.cancel(key(name)), want, "{name}");
    }
}

#[test]
fn a_claim_in_flight_answers_firing_and_its_outcome_decides_afterwards() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(NewTask { guarantee: Guarantee::AtMostOnce, ..keyed("order", secs(1)) });
    fixture.advance(secs(1));
    let fired_at = fixture.now;
    assert!(matches!(fixture.cancel(key("order")), Ok(Cancelled::Firing(_))));
    fixture.now = fixture.now.after(millis(5));
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(fixture.cancel(key("order")), Ok(Cancelled::AlreadyFired(fired_at)));
    // A claim that a crash left behind has no attempt.
    fixture.schedule(NewTask { guarantee: Guarantee::AtMostOnce, ..keyed("lost", secs(1)) });
    fixture.advance(secs(1));
    let ended_at = record_of(&fixture, "lost").ended_at;
    fixture.crash();
    assert_eq!(fixture.cancel(key("lost")), Ok(Cancelled::AlreadyFired(ended_at)));
}

#[test]
fn a_create_or_redrive_that_is_decided_meanwhile_wins() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(NewTask {
        retry: RetryPolicy { attempts_max: 1, ..twice() },
        ..keyed("order", secs(1))
    });
    fixture.advance(secs(1));
    let dead = fixture.report(failed()).fire_id;
    fixture.run();
    // Redriven by its id while the record of its end is being read by its key.
    let mut cancelled = fixture.send_cancel(key("order"));
    let lookup = fixture.actions.pop().unwrap();
    let read = fixture.answer(lookup);
    let by_id = Command::Redrive { subject: Subject::Id(shop(), dead.task), fire_id: dead };
    let mut redriven = fixture.send_for_task(by_id);
    fixture.run();
    assert!(redriven.try_recv().unwrap().is_ok());
    fixture.owner.on(read, fixture.now);
    fixture.run();
    let reply = cancelled.try_recv().unwrap();
    assert!(matches!(reply, Ok(Cancelled::Cancelled | Cancelled::Firing(_))), "{reply:?}");
    // Created, then cancelled, before anything is written.
    let mut created = fixture.send_schedule(keyed("order", secs(1)), Condition::Always);
    let mut cancelled = fixture.send_cancel(key("order"));
    fixture.run();
    assert!(created.try_recv().unwrap().is_ok());
    assert_eq!(cancelled.try_recv().unwrap(), Ok(Cancelled::Cancelled));
}

#[test]
fn only_a_cancel_reads_the_last_fire_of_a_key() {
    let mut fixture = OwnerFixture::new();
    let lookups = |fixture: &OwnerFixture| -> Vec<Lookup> {
        let of = |action: &Action| match action {
            Action::Lookup(lookups) => lookups.clone(),
            _ => Vec::new(),
        };
        fixture.actions.iter().flat_map(of).collect()
    };
    let _created = fixture.send_schedule(keyed("a", secs(1)), Condition::Always);
    let _got = fixture.send_for_task(Command::Get(key("b")));
    let _paused = fixture.send_for_task(Command::Pause(key("c")));
    let _touched = fixture.send_touch(key("d"), TouchTo::Within);
    let _cancelled = fixture.send_cancel(key("e"));
    let reads_last = |lookup: &Lookup| lookup.depth == LookupDepth::TaskOrLastFire;
    let found = lookups(&fixture);
    assert_eq!(found.len(), 5);
    let subjects: Vec<_> =
        found.iter().filter(|lookup| reads_last(lookup)).map(|lookup| &lookup.subject).collect();
    assert_eq!(subjects, [&key("e")]);
}
