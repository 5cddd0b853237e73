//! Touch, pause, resume, fire, redrive and delete: what callers do to a task that exists.

use crate::fixture::{
    OwnerFixture, PARTITION, StoreFault, failed, id, key, keyed, millis, once, ready, secs, shop,
};
use punctual_core::{
    Due, FireEnd, Guarantee, NewTask, Occasion, Outcome, RetryPolicy, TaskState, Version,
};
use punctual_engine::{
    Call, Cancelled, Command, Condition, EngineError, Event, Replies, Reply, ScheduleCommand,
    Scheduled, StartState, Subject, TouchTo,
};
use punctual_store::TaskStore;
use tokio::sync::oneshot;

fn to(duration: std::time::Duration) -> TouchTo {
    TouchTo::To(Due::In(duration))
}

#[test]
fn a_touched_task_fires_at_its_new_time_only() {
    for (first, then) in [(5, 9), (9, 5), (5, 500), (500, 5), (500, 700)] {
        let mut fixture = OwnerFixture::new();
        fixture.schedule(keyed("order", secs(first)));
        let fire_at = fixture.touch(key("order"), to(secs(then))).unwrap();
        assert_eq!(fire_at, fixture.now.after(secs(then)));
        fixture.advance(millis(then * 1000 - 1));
        assert!(fixture.in_flight.is_empty(), "{first} to {then}: early");
        fixture.advance(millis(1));
        assert_eq!(fixture.in_flight.len(), 1, "{first} to {then}");
        assert_eq!(fixture.in_flight[0].fire_at, fire_at);
        assert_eq!(fixture.in_flight[0].version, Version::new(2));
        fixture.report(Outcome::Acked);
        fixture.advance(secs(1000));
        assert!(fixture.in_flight.is_empty(), "{first} to {then}: twice");
        assert_eq!(fixture.counts().done, 1);
    }
}

#[test]
fn a_task_that_becomes_due_while_its_touch_is_written_fires_at_the_new_time() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", millis(5)));
    let mut answer = fixture.send_touch(key("order"), to(secs(9)));
    fixture.perform(0);
    assert!(answer.try_recv().is_err(), "decided, not durable");
    fixture.now = fixture.now.after(millis(50));
    fixture.run();
    assert!(answer.try_recv().unwrap().is_ok());
    assert!(fixture.in_flight.is_empty());
    fixture.advance(secs(9));
    assert_eq!(fixture.in_flight.len(), 1);
}

#[test]
fn a_task_touched_while_its_page_is_read_fires() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(5)));
    fixture.crash();
    // The first page is pending; the touch overtakes it.
    let mut answer = fixture.send_touch(key("order"), to(secs(8)));
    while fixture.actions.len() > 1 {
        fixture.perform(1);
    }
    assert!(answer.try_recv().unwrap().is_ok());
    fixture.advance(secs(8));
    assert_eq!(fixture.in_flight.len(), 1);
}

#[test]
fn a_touch_while_a_retry_is_pending_begins_a_new_fire() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(1)));
    fixture.advance(secs(1));
    let first = fixture.report(failed());
    fixture.run();
    fixture.touch(key("order"), to(secs(60))).unwrap();
    fixture.advance(secs(60));
    assert_eq!(fixture.in_flight.len(), 1);
    assert_ne!(fixture.in_flight[0].fire_id, first.fire_id);
    assert_eq!(fixture.in_flight[0].attempt.get(), 1);
}

#[test]
fn a_touch_moves_the_schedule_and_not_a_manual_fire_that_waits_or_is_retried() {
    for waits_for_retry in [false, true] {
        let mut fixture = OwnerFixture::new();
        let task = fixture.schedule(keyed("order", secs(30)));
        if !waits_for_retry {
            fixture.set_capacity(0);
        }
        fixture.task(Command::Fire(key("order"))).unwrap();
        if waits_for_retry {
            fixture.report(failed());
            fixture.run();
        }
        fixture.touch(key("order"), to(secs(60))).unwrap();
        fixture.set_capacity(256);
        fixture.advance(secs(20));
        let manual = fixture.report(Outcome::Acked);
        assert_eq!(manual.occasion, Occasion::Manual);
        fixture.advance(secs(39));
        assert!(fixture.in_flight.is_empty(), "fired at its old time");
        fixture.advance(secs(1));
        let moved = fixture.report(Outcome::Acked);
        assert_eq!(moved.occasion, Occasion::Due);
        assert_eq!(moved.fire_id.task, task.id);
    }
}

#[test]
fn a_task_that_cannot_be_touched_says_why() {
    let mut fixture = OwnerFixture::new();
    assert_eq!(fixture.touch(key("order"), to(secs(1))), Err(EngineError::NotFound));
    fixture.schedule(keyed("order", secs(5)));
    assert_eq!(fixture.touch(key("order"), TouchTo::Within), Err(EngineError::NotAWatch));
    fixture.task(Command::Pause(key("order"))).unwrap();
    assert_eq!(fixture.touch(key("order"), to(secs(1))), Err(EngineError::Paused));
    fixture.task(Command::Resume(key("order"))).unwrap();
    fixture.advance(secs(5));
    assert!(matches!(fixture.touch(key("order"), to(secs(1))), Err(EngineError::Firing(_))));
}

#[test]
fn a_paused_task_waits_until_it_is_resumed() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(5)));
    let paused = fixture.task(Command::Pause(key("order"))).unwrap();
    assert_eq!(paused.state, TaskState::Paused);
    fixture.advance(secs(60));
    assert!(fixture.in_flight.is_empty());
    fixture.crash();
    fixture.advance(secs(60));
    assert!(fixture.in_flight.is_empty(), "after a crash as well");
    assert_eq!(fixture.counts().paused, 1);
    let resumed = fixture.task(Command::Resume(key("order"))).unwrap();
    assert_eq!((resumed.state, resumed.version), (TaskState::Scheduled, Version::new(3)));
    assert_eq!(fixture.in_flight.len(), 1, "overdue, so it fires at once");
}

#[test]
fn pausing_twice_changes_nothing_the_second_time() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(5)));
    let first = fixture.task(Command::Pause(key("order"))).unwrap();
    assert_eq!(fixture.task(Command::Pause(key("order"))), Ok(first));
    assert_eq!(fixture.task(Command::Resume(key("none"))), Err(EngineError::NotFound));
}

#[test]
fn an_attempt_in_flight_continues_when_its_task_is_paused_and_its_retry_waits() {
    for outcome_first in [false, true] {
        let mut fixture = OwnerFixture::new();
        fixture.schedule(keyed("order", secs(1)));
        fixture.advance(secs(1));
        let mut paused = fixture.send_for_task(Command::Pause(key("order")));
        fixture.perform(0);
        if outcome_first {
            // The outcome arrives while the pause is being written.
            fixture.report(failed());
        }
        fixture.run();
        assert!(paused.try_recv().unwrap().is_ok());
        if !outcome_first {
            fixture.report(failed());
        }
        fixture.advance(secs(60));
        assert!(fixture.in_flight.is_empty(), "no retry while it is paused");
        assert_eq!((fixture.counts().paused, fixture.counts().scheduled), (1, 0));
        fixture.task(Command::Resume(key("order"))).unwrap();
        assert_eq!(fixture.in_flight.len(), 1);
        assert_eq!(fixture.in_flight[0].attempt.get(), 2);
        fixture.report(Outcome::Acked);
        fixture.run();
        assert_eq!((fixture.counts().done, fixture.counts().paused), (1, 0));
    }
}

#[test]
fn a_paused_task_whose_attempt_succeeds_is_done() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(1)));
    fixture.advance(secs(1));
    fixture.task(Command::Pause(key("order"))).unwrap();
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!((fixture.counts().done, fixture.counts().paused), (1, 0));
    assert_eq!(fixture.owner.loaded(), 0);
}

fn dead_letter(fixture: &mut OwnerFixture, new_task: NewTask) -> punctual_core::DeadLetter {
    fixture.schedule(new_task);
    fixture.advance(secs(1));
    fixture.report(Outcome::Refused { reason: punctual_core::Reason::new("no") });
    fixture.advance(millis(1));
    ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items.remove(0)
}

#[test]
fn a_redriven_letter_fires_again_under_its_fire_id() {
    let mut fixture = OwnerFixture::new();
    let letter = dead_letter(&mut fixture, keyed("order", secs(1)));
    let (subject, fire_id) = (key("order"), letter.fire_id());
    let task = fixture.task(Command::Redrive { subject: subject.clone(), fire_id }).unwrap();
    assert_eq!(task.id, letter.task.id);
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!((fixture.in_flight[0].fire_id, fixture.in_flight[0].attempt.get()), (fire_id, 2));
    let again = fixture.task(Command::Redrive { subject, fire_id });
    assert_eq!(again, Err(EngineError::DeadLetterNotFound), "once");
    fixture.report(Outcome::Acked);
    fixture.run();
    let counts = fixture.counts();
    assert_eq!((counts.done, counts.dead, counts.dead_letters), (1, 0, 0));
    let history = ready(fixture.store.history(PARTITION, task.id, 9)).unwrap();
    assert_eq!(history.len(), 1, "one record per fire");
    assert_eq!(history[0].end, FireEnd::Done);
}

#[test]
fn a_redriven_fire_is_marked_and_a_first_attempt_or_a_retry_is_not() {
    let mut fixture = OwnerFixture::new();
    let retry = RetryPolicy { attempts_max: 2, ..RetryPolicy::default() };
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        let task = NewTask { guarantee, retry: retry.clone(), ..keyed("order", secs(1)) };
        fixture.schedule(task);
        fixture.advance(secs(1));
        fixture.report(failed());
        fixture.advance(secs(60));
        if guarantee == Guarantee::AtLeastOnce {
            fixture.report(failed());
            fixture.advance(secs(60));
        }
        assert!(fixture.sent.iter().all(|delivery| !delivery.redriven));
        let letter =
            ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items.remove(0);
        let fire_id = letter.fire_id();
        fixture.task(Command::Redrive { subject: key("order"), fire_id }).unwrap();
        assert!(fixture.in_flight[0].redriven, "{guarantee:?}");
        fixture.report(Outcome::Acked);
        fixture.run();
        fixture.sent.clear();
    }
}

#[test]
fn a_letter_whose_key_names_another_task_now_is_not_redriven() {
    let mut fixture = OwnerFixture::new();
    let letter = dead_letter(&mut fixture, keyed("order", secs(1)));
    fixture.schedule(keyed("order", secs(100)));
    let redrive = Command::Redrive { subject: key("order"), fire_id: letter.fire_id() };
    assert!(matches!(fixture.task(redrive), Err(EngineError::Exists(_))));
    assert_eq!(fixture.counts().dead_letters, 1);
}

#[test]
fn a_letter_is_deleted_once() {
    let mut fixture = OwnerFixture::new();
    let letter = dead_letter(&mut fixture, once(secs(1)));
    let forget = || Command::DeleteLetter { namespace: shop(), fire_id: letter.fire_id() };
    let forgotten = |reply| matches!(reply, Reply::LetterDeleted).then_some(());
    let mut first = fixture.send(forget(), forgotten);
    let mut second = fixture.send(forget(), forgotten);
    fixture.run();
    assert_eq!(first.try_recv().unwrap(), Ok(()));
    assert_eq!(second.try_recv().unwrap(), Err(EngineError::DeadLetterNotFound));
    assert_eq!(fixture.counts().dead_letters, 0);
}

#[test]
fn the_claim_of_a_fire_in_flight_is_not_a_letter() {
    let mut fixture = OwnerFixture::new();
    let new_task = NewTask { guarantee: Guarantee::AtMostOnce, ..keyed("order", secs(1)) };
    let task = fixture.schedule(new_task);
    fixture.advance(secs(1));
    assert_eq!(fixture.in_flight.len(), 1);
    let redrive = Command::Redrive { subject: key("order"), fire_id: task.fire().id };
    assert_eq!(fixture.task(redrive), Err(EngineError::DeadLetterNotFound), "it may still arrive");
    let pause = fixture.task(Command::Pause(id(&task)));
    assert!(matches!(pause, Err(EngineError::Firing(_))), "{pause:?}");
}

#[test]
fn a_delivery_that_was_not_sent_is_no_attempt_and_is_sent_again() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        let mut fixture = OwnerFixture::new();
        fixture.schedule(NewTask { guarantee, ..keyed("order", secs(1)) });
        fixture.advance(secs(1));
        fixture.report_unsent();
        fixture.run();
        assert_eq!(fixture.in_flight.len(), 1, "{guarantee:?}");
        assert_eq!(fixture.in_flight[0].attempt.get(), 1);
        fixture.report(Outcome::Acked);
        fixture.run();
        let counts = fixture.counts();
        assert_eq!((counts.done, counts.scheduled, counts.dead_letters), (1, 0, 0));
    }
}

#[test]
fn a_call_of_many_commands_is_answered_in_their_order() {
    let mut fixture = OwnerFixture::new();
    let schedule = |new_task: NewTask| {
        let (new_task, condition) = (new_task.into(), Condition::Always);
        Command::Schedule(ScheduleCommand {
            new_task,
            condition,
            receipt: None,
            start: StartState::Scheduled,
        })
    };
    let commands = vec![
        Command::Get(key("a")),
        schedule(keyed("a", secs(5))),
        schedule(once(secs(5))),
        Command::Touch(key("a"), to(secs(9))),
        Command::Get(key("a")),
        Command::Cancel(key("a")),
    ];
    let (call, mut answers) = Call::new(commands);
    fixture.owner.on(Event::Call(call), fixture.now);
    fixture.run();
    let answers = answers.try_recv().unwrap();
    assert_eq!(answers[0], Err(EngineError::NotFound));
    assert!(matches!(answers[1], Ok(Reply::Scheduled(Scheduled::Created(_)))));
    assert!(matches!(answers[2], Ok(Reply::Scheduled(Scheduled::Created(_)))));
    assert!(matches!(answers[3], Ok(Reply::Touched { .. })));
    assert!(matches!(&answers[4], Ok(Reply::Task(task)) if task.version == Version::new(2)));
    assert_eq!(answers[5], Ok(Reply::Cancelled(Cancelled::Cancelled)));
}

/// Touches a task and reads it in the same call.
fn touch_and_get(
    fixture: &mut OwnerFixture,
    subject: &Subject,
    push: TouchTo,
) -> oneshot::Receiver<Replies> {
    let commands = vec![Command::Touch(subject.clone(), push), Command::Get(subject.clone())];
    let (call, replies) = Call::new(commands);
    fixture.owner.on(Event::Call(call), fixture.now);
    replies
}

#[test]
fn a_touch_and_the_read_after_it_take_one_lookup() {
    let mut fixture = OwnerFixture::new();
    let created = fixture.schedule(keyed("a", secs(50)));
    let before = fixture.lookups;
    let mut replies = touch_and_get(&mut fixture, &key("a"), to(secs(90)));
    fixture.run();
    let replies = replies.try_recv().unwrap();
    let touched = fixture.get(key("a")).unwrap();
    assert_eq!(replies[1], Ok(Reply::Task(touched.clone())));
    assert_eq!((touched.fire_at, touched.version), (fixture.now.after(secs(90)), Version::new(2)));
    assert_eq!(touched.definition, created.definition);
    assert_eq!(fixture.lookups - before, 2, "one for the call, one for the read after it");
}

#[test]
fn a_read_after_a_touch_shows_the_task_before_a_command_that_came_later() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(keyed("a", secs(50)));
    let mut replies = touch_and_get(&mut fixture, &key("a"), to(secs(90)));
    // Looked up together with the touch, by another name.
    let mut paused = fixture.send_for_task(Command::Pause(id(&task)));
    fixture.run();
    let read = replies.try_recv().unwrap().remove(1);
    let Ok(Reply::Task(read)) = read else { panic!("{read:?}") };
    assert_eq!((read.state, read.version), (TaskState::Scheduled, Version::new(2)));
    let paused = paused.try_recv().unwrap().unwrap();
    assert_eq!((paused.state, paused.version), (TaskState::Paused, Version::new(3)));
    assert_eq!((paused.fire_at, paused.updated_at), (read.fire_at, read.updated_at));
}

#[test]
fn a_task_that_is_due_before_its_touch_is_read_as_it_fires() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("a", secs(50)));
    let mut replies = touch_and_get(&mut fixture, &key("a"), to(secs(0)));
    fixture.run();
    let read = replies.try_recv().unwrap().remove(1);
    let Ok(Reply::Task(read)) = read else { panic!("{read:?}") };
    assert_eq!((read.state, read.version), (TaskState::Firing, Version::new(2)));
}

#[test]
fn an_unavailable_store_is_asked_again_for_pending_lookups() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("a", secs(50)));
    fixture.fault = StoreFault::Unavailable;
    let mut answer = fixture.send_touch(key("a"), to(secs(90)));
    fixture.advance(secs(1));
    assert!(answer.try_recv().is_err());
    fixture.fault = StoreFault::None;
    fixture.advance(secs(1));
    assert!(answer.try_recv().unwrap().is_ok());
}

#[test]
fn a_task_paused_in_flight_whose_delivery_was_not_sent_stays_paused() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(1)));
    fixture.advance(secs(1));
    fixture.task(Command::Pause(key("order"))).unwrap();
    fixture.report_unsent();
    fixture.advance(secs(60));
    assert!(fixture.in_flight.is_empty());
    fixture.task(Command::Resume(key("order"))).unwrap();
    assert_eq!(fixture.in_flight.len(), 1);
}

#[test]
fn an_unsent_at_most_once_task_whose_key_was_reused_is_not_sent_again() {
    for successor_is_done in [false, true] {
        let mut fixture = OwnerFixture::new();
        let at_most_once =
            |delay| NewTask { guarantee: Guarantee::AtMostOnce, ..keyed("order", delay) };
        fixture.schedule(at_most_once(secs(1)));
        fixture.advance(secs(1));
        let successor = fixture.schedule(keyed("order", secs(1)));
        if successor_is_done {
            fixture.advance(secs(1));
            fixture.report_at(1, Outcome::Acked);
            fixture.run();
        }
        fixture.report_unsent();
        fixture.advance(secs(60));
        let sent: Vec<_> = fixture.in_flight.iter().map(|delivery| delivery.fire_id.task).collect();
        let want = if successor_is_done { vec![] } else { vec![successor.id] };
        assert_eq!(sent, want);
        let counts = fixture.counts();
        assert_eq!(counts.dead_letters, 0);
        assert_eq!(counts.accepted(), 2, "both were answered as created: {counts:?}");
    }
}

#[test]
fn a_task_fired_manually_fires_now_and_again_at_its_time() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(keyed("order", secs(600)));
    let fired = fixture.task(Command::Fire(key("order"))).unwrap();
    assert_eq!(fired.fire_at, fixture.now);
    assert_eq!(fixture.in_flight.len(), 1);
    assert_ne!(fixture.in_flight[0].fire_id, task.fire().id, "another fire of the same task");
    assert!(matches!(fixture.task(Command::Fire(key("order"))), Err(EngineError::Firing(_))));
    fixture.crash();
    fixture.run();
    assert_eq!(fixture.in_flight.len(), 1, "it is sent again after a crash");
    fixture.report(Outcome::Acked);
    fixture.advance(millis(599_999));
    assert!(fixture.in_flight.is_empty());
    fixture.advance(millis(1));
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(fixture.in_flight[0].fire_id, task.fire().id);
    fixture.report(Outcome::Acked);
    fixture.run();
    assert_eq!(fixture.counts().done, 1);
    let history = ready(fixture.store.history(PARTITION, task.id, 9)).unwrap();
    assert_eq!(history.len(), 2);
}

#[test]
fn a_dead_manual_fire_leaves_the_schedule_alone_and_is_redriven_apart_from_it() {
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(keyed("order", secs(600)));
    fixture.task(Command::Fire(key("order"))).unwrap();
    fixture.report(Outcome::Refused { reason: punctual_core::Reason::new("no") });
    fixture.advance(millis(1));
    let letter = ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items.remove(0);
    let redrive = Command::Redrive { subject: key("order"), fire_id: letter.fire_id() };
    let redriven = fixture.task(redrive).unwrap();
    assert_ne!(redriven.id, task.id);
    assert_eq!(redriven.definition.key, None);
    let delivery = &fixture.in_flight[0];
    assert_eq!((delivery.fire_id, delivery.occasion), (letter.fire_id(), Occasion::Manual));
    fixture.report(Outcome::Acked);
    fixture.advance(secs(600));
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(fixture.in_flight[0].fire_id, task.fire().id);
    fixture.report(Outcome::Acked);
    fixture.run();
    let counts = fixture.counts();
    assert_eq!((counts.done, counts.dead, counts.dead_letters), (2, 0, 0));
}

#[test]
fn firing_a_task_with_a_pending_retry_makes_the_retry_now() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(keyed("order", secs(1)));
    fixture.advance(secs(1));
    let first = fixture.report(failed());
    fixture.run();
    fixture.task(Command::Fire(key("order"))).unwrap();
    assert_eq!(fixture.in_flight.len(), 1);
    assert_eq!(
        (fixture.in_flight[0].fire_id, fixture.in_flight[0].attempt.get()),
        (first.fire_id, 2)
    );
}

#[test]
fn a_task_that_cannot_be_fired_manually_says_why() {
    let mut fixture = OwnerFixture::new();
    assert_eq!(fixture.task(Command::Fire(key("a"))), Err(EngineError::NotFound));
    fixture.schedule(keyed("a", secs(50)));
    fixture.task(Command::Pause(key("a"))).unwrap();
    assert_eq!(fixture.task(Command::Fire(key("a"))), Err(EngineError::Paused));
}

#[test]
fn an_at_most_once_task_can_be_fired_manually() {
    let at_most_once = || NewTask { guarantee: Guarantee::AtMostOnce, ..keyed("order", secs(600)) };
    let mut fixture = OwnerFixture::new();
    let task = fixture.schedule(at_most_once());
    fixture.task(Command::Fire(key("order"))).unwrap();
    let manual = fixture.in_flight[0].fire_id;
    assert_ne!(manual, task.fire().id, "another fire of the same task");
    let letters = |fixture: &OwnerFixture| {
        ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items
    };
    assert_eq!(letters(&fixture)[0].fire_id(), manual, "claimed before it was sent");
    assert!(matches!(fixture.task(Command::Fire(key("order"))), Err(EngineError::Firing(_))));
    fixture.crash();
    fixture.sent.clear();
    fixture.advance(secs(599));
    assert!(fixture.sent.is_empty(), "never a second time");
    fixture.advance(secs(1));
    assert_eq!(fixture.sent.len(), 1);
    assert_eq!(fixture.sent[0].fire_id, task.fire().id, "the schedule still applies");
    fixture.report(Outcome::Acked);
    fixture.run();
    let letters = letters(&fixture);
    assert_eq!((letters.len(), letters[0].fire_id()), (1, manual));
    let counts = fixture.counts();
    assert_eq!((counts.done, counts.scheduled), (1, 0));

    // A known outcome replaces the claim.
    let mut fixture = OwnerFixture::new();
    fixture.schedule(at_most_once());
    fixture.task(Command::Fire(key("order"))).unwrap();
    fixture.report(Outcome::Acked);
    fixture.run();
    let counts = fixture.counts();
    assert_eq!((counts.scheduled, counts.dead_letters), (1, 0));
    fixture.task(Command::Fire(key("order"))).unwrap();
    // The first one has ended within this millisecond, so this one has the next as its id.
    fixture.advance(millis(1));
    fixture.report(Outcome::Refused { reason: punctual_core::Reason::new("no") });
    fixture.run();
    let counts = fixture.counts();
    assert_eq!((counts.scheduled, counts.dead_letters), (1, 1));
    fixture.advance(secs(600));
    assert_eq!(fixture.in_flight.len(), 1);
}
