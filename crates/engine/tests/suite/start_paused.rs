//! Tasks that start paused, and the time at which a task changed last.

use crate::fixture::{
    OwnerFixture, PARTITION, START, failed, id, key, keyed, once, ready, secs, shop,
};
use punctual_core::{
    Backoff, Due, Guarantee, Jitter, NewTask, Outcome, Overlap, Payload, RetryPolicy, Schedule,
    Series, Task, TaskKey, TaskState,
};
use punctual_engine::{
    Cancelled, Command, Condition, EngineError, Receipt, Reply, ScheduleCommand, Scheduled,
    StartState, TouchTo,
};
use punctual_store::TaskStore;

fn start_paused(fixture: &mut OwnerFixture, new_task: NewTask) -> Task {
    let mut reply = fixture.send_started(new_task, Condition::Always, StartState::Paused);
    fixture.run();
    reply.try_recv().unwrap().unwrap().task().clone()
}

fn beat() -> NewTask {
    NewTask { schedule: Schedule::every(secs(10)), ..keyed("beat", secs(0)) }
}

fn watch() -> NewTask {
    NewTask { schedule: Schedule::watch(secs(10)), ..keyed("watch", secs(0)) }
}

fn stored(fixture: &OwnerFixture, task: &Task) -> Task {
    ready(fixture.store.get(PARTITION, &[task.id])).unwrap().remove(0).unwrap()
}

#[test]
fn a_task_that_starts_paused_fires_only_after_it_is_resumed() {
    for (new_task, resumed_at, fires_at) in [
        (once(secs(1)), 60, 60),
        (keyed("order", secs(1)), 60, 60),
        (once(secs(90)), 60, 90),
        // Fires that were due meanwhile are skipped.
        (beat(), 61, 70),
        // A watch is armed anew.
        (watch(), 60, 70),
    ] {
        let what = format!("{:?}", new_task.schedule);
        let mut fixture = OwnerFixture::new();
        let task = start_paused(&mut fixture, new_task);
        assert_eq!((task.state, task.version.get()), (TaskState::Paused, 1), "{what}");
        assert_eq!((fixture.counts().paused, fixture.owner.loaded()), (1, 0), "{what}");
        assert_eq!(fixture.get(id(&task)).unwrap().state, TaskState::Paused);
        fixture.advance(secs(30));
        fixture.crash();
        fixture.advance(START.after(secs(resumed_at)).since(fixture.now));
        assert!(fixture.in_flight.is_empty(), "{what}");
        let resumed = fixture.task(Command::Resume(id(&task))).unwrap();
        assert_eq!(resumed.state, TaskState::Scheduled);
        fixture.advance(START.after(secs(fires_at)).since(fixture.now));
        assert_eq!(fixture.in_flight.len(), 1, "{what}");
        assert_eq!(fixture.in_flight[0].fired_at, START.after(secs(fires_at)), "{what}");
    }
}

#[test]
fn replacing_and_editing_set_the_state_only_to_paused() {
    use StartState as Start;
    use TaskState as State;
    for (new_task, edits) in
        [(keyed as fn(&str, _) -> NewTask, false), (|_, _| beat(), true), (|_, _| watch(), true)]
    {
        for (before, start, want) in [
            (Start::Scheduled, Start::Scheduled, State::Scheduled),
            (Start::Scheduled, Start::Paused, State::Paused),
            (Start::Paused, Start::Paused, State::Paused),
            // A task that is edited in place keeps its state, and a new task is scheduled.
            (Start::Paused, Start::Scheduled, if edits { State::Paused } else { State::Scheduled }),
        ] {
            let mut fixture = OwnerFixture::new();
            let mut reply =
                fixture.send_started(new_task("order", secs(50)), Condition::Always, before);
            fixture.run();
            let old = reply.try_recv().unwrap().unwrap().task().clone();
            let changed =
                NewTask { payload: Payload::Json("1".into()), ..new_task("order", secs(50)) };
            let mut reply = fixture.send_started(changed, Condition::Always, start);
            fixture.run();
            let Scheduled::Replaced(task) = reply.try_recv().unwrap().unwrap() else {
                panic!("created")
            };
            let what = format!("edits: {edits}, {before:?} then {start:?}");
            assert_eq!((task.state, task.id == old.id), (want, edits), "{what}");
            assert_eq!(stored(&fixture, &task), task, "{what}");
            assert_eq!(fixture.counts().accepted(), 1, "{what}");
            fixture.advance(secs(55));
            let fires = want == State::Scheduled;
            assert_eq!(!fixture.sent.is_empty(), fires, "{what}");
        }
    }
}

#[test]
fn an_edit_to_paused_while_an_attempt_is_in_flight_lets_the_attempt_end() {
    let mut fixture = OwnerFixture::new();
    fixture.schedule(beat());
    fixture.advance(secs(10));
    let edited = start_paused(&mut fixture, beat());
    assert_eq!(edited.state, TaskState::Paused);
    fixture.report(Outcome::Acked);
    fixture.advance(secs(60));
    assert_eq!(fixture.sent.len(), 1);
    let stored = stored(&fixture, &edited);
    assert_eq!((stored.state, stored.attempts.len()), (TaskState::Paused, 0));
}

#[test]
fn a_task_with_a_key_that_starts_paused_can_be_cancelled_and_not_touched() {
    let mut fixture = OwnerFixture::new();
    start_paused(&mut fixture, watch());
    assert_eq!(fixture.touch(key("watch"), TouchTo::Within), Err(EngineError::Paused));
    assert_eq!(fixture.cancel(key("watch")), Ok(Cancelled::Cancelled));
}

#[test]
fn repeating_a_create_with_an_idempotency_key_answers_the_paused_task_again() {
    let mut fixture = OwnerFixture::new();
    let receipt = Receipt { key: TaskKey::new("request").unwrap(), digest: "ab".to_owned() };
    for new_task in [once(secs(5)), keyed("order", secs(5))] {
        let command = ScheduleCommand {
            new_task: new_task.into(),
            condition: Condition::Always,
            receipt: Some(Receipt { key: receipt.key.clone(), digest: receipt.digest.clone() }),
            start: StartState::Paused,
        };
        let replies = [(); 2].map(|()| {
            let mut reply = fixture.send(Command::Schedule(command.clone()), |reply| match reply {
                Reply::Scheduled(scheduled) => Some(scheduled),
                _ => None,
            });
            fixture.run();
            reply.try_recv().unwrap().unwrap()
        });
        assert_eq!(replies[0].task(), replies[1].task());
        assert_eq!(replies[0].task().state, TaskState::Paused);
        fixture = OwnerFixture::new();
    }
}

/// What is done to a task that was created at second 0.
type Step = fn(&mut OwnerFixture, &Task);

#[test]
fn a_task_says_when_it_changed_last() {
    let retry = RetryPolicy {
        attempts_max: 5,
        backoff: Backoff::Fixed(secs(100)),
        jitter: Jitter::default(),
    };
    let once = NewTask { retry: retry.clone(), ..once(secs(10)) };
    let later = NewTask { retry: retry.clone(), ..keyed("later", secs(500)) };
    let beat = NewTask { retry: retry.clone(), ..beat() };
    let claimed = NewTask { guarantee: Guarantee::AtMostOnce, ..beat.clone() };
    let overlap = Series { overlap: Overlap::Allow, ..Series::default() };
    let overlapping = NewTask {
        schedule: Schedule::Every { interval: secs(10), series: overlap.into() },
        ..beat.clone()
    };
    let watch = NewTask { retry, ..watch() };
    let nothing: Step = |_, _| {};
    let touch: Step = |fixture, task| {
        fixture.touch(id(task), TouchTo::To(Due::In(secs(700)))).unwrap();
    };
    let touch_earlier: Step = |fixture, task| {
        fixture.touch(id(task), TouchTo::To(Due::In(secs(100)))).unwrap();
    };
    let touch_watch: Step = |fixture, task| {
        fixture.touch(id(task), TouchTo::Within).unwrap();
    };
    let pause: Step = |fixture, task| drop(fixture.task(Command::Pause(id(task))).unwrap());
    let resume: Step = |fixture, task| {
        fixture.task(Command::Pause(id(task))).unwrap();
        fixture.advance(secs(25));
        fixture.task(Command::Resume(id(task))).unwrap();
    };
    let fire: Step = |fixture, task| drop(fixture.task(Command::Fire(id(task))).unwrap());
    let edit: Step = |fixture, task| {
        let payload = Payload::Json("1".into());
        fixture.schedule(NewTask { payload, ..NewTask::clone(&task.definition) });
    };
    let fail: Step = |fixture, _| drop(fixture.report(failed()));
    let fail_and_fire: Step = |fixture, task| {
        fixture.report(failed());
        fixture.advance(secs(3));
        fixture.task(Command::Fire(id(task))).unwrap();
    };
    let ack_first: Step = |fixture, _| {
        fixture.advance(secs(10));
        fixture.report(Outcome::Acked);
    };
    let fail_first: Step = |fixture, _| {
        fixture.advance(secs(10));
        fixture.report(failed());
    };
    let redrive: Step = |fixture, task| {
        for _ in 0..5 {
            fixture.report(failed());
            fixture.advance(secs(100));
        }
        let letters = ready(fixture.store.dead(PARTITION, &shop(), None, 9)).unwrap().items;
        let (subject, fire_id) = (id(task), letters[0].fire_id());
        fixture.task(Command::Redrive { subject, fire_id }).unwrap();
    };
    // After how many seconds the step begins and, with the task, at which second it changed.
    for (what, new_task, begins, step, changed_at) in [
        ("created", &later, 20, nothing, 0),
        ("touched", &later, 20, touch, 20),
        ("touched to an earlier time", &later, 20, touch_earlier, 20),
        ("a watch was touched", &watch, 5, touch_watch, 5),
        ("a watch was touched while firing", &watch, 12, touch_watch, 12),
        ("paused", &later, 20, pause, 20),
        ("resumed", &later, 20, resume, 45),
        ("a series was resumed", &beat, 5, resume, 30),
        ("fired manually", &later, 20, fire, 20),
        ("edited", &beat, 5, edit, 5),
        ("sent, and in flight", &once, 12, nothing, 0),
        ("retried", &once, 12, fail, 12),
        ("the retry was made at once", &once, 12, fail_and_fire, 15),
        ("redriven", &once, 12, redrive, 512),
        ("claimed, and in flight", &claimed, 15, nothing, 10),
        ("a fire that overlaps was acked", &overlapping, 12, ack_first, 22),
        ("a fire that overlaps failed", &overlapping, 12, fail_first, 22),
    ] {
        let mut fixture = OwnerFixture::new();
        let task = fixture.schedule(new_task.clone());
        fixture.advance(secs(begins));
        step(&mut fixture, &task);
        fixture.run();
        let stored = stored(&fixture, &task);
        assert_eq!(stored.created_at, START, "{what}");
        assert_eq!(stored.updated_at, START.after(secs(changed_at)), "{what}: {stored:?}");
        let shown = fixture.get(id(&task)).unwrap();
        assert_eq!(shown.updated_at, stored.updated_at, "{what}");
    }
}
