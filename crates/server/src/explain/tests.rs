//! Planted causes, and what is said about each.

use std::sync::Arc;

use punctual_core::{
    Answer, AttemptNo, Cron, DeadReason, Dst, FireId, Guarantee, HttpTarget, Labels, Method,
    Namespace, NewTask, Queue, Reason, Series, TaskId, TaskKey, Version,
};
use punctual_engine::OwnerView;

use super::*;
use crate::courier::queue::{WorkerLabel, WorkerView};

const NOW: Timestamp = Timestamp::from_millis(1_900_000_000_000);

fn at(seconds: i64) -> Timestamp {
    let millis = i64::try_from(NOW.as_millis()).unwrap() + seconds * 1000;
    Timestamp::from_millis(u64::try_from(millis).unwrap())
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn queue() -> Target {
    Target::Queue(Queue::new("emails").unwrap())
}

fn hook() -> Target {
    Target::Http(HttpTarget::new("http://shop.test:9/hook", Method::Post, vec![]).unwrap())
}

fn task(schedule: Schedule, target: Target, fire_at: Timestamp) -> Task {
    let mut new_task = NewTask::new(Namespace::new("shop").unwrap(), schedule, target);
    new_task.key = Some(TaskKey::new("order-1").unwrap());
    let id = TaskId::floor(fire_at);
    let task = Task::new(id, Arc::new(new_task), at(-3600), Version::FIRST);
    Task { fire_at, nominal_at: fire_at, ..task }
}

fn once(target: Target, seconds: i64) -> Task {
    task(Schedule::Once(Due::At(at(seconds))), target, at(seconds))
}

fn failed(reason: &str, retry_in: Option<Duration>) -> AttemptRecord {
    AttemptRecord {
        number: AttemptNo::FIRST,
        fired_at: at(-5),
        ended_at: at(-4),
        outcome: Outcome::Failed { reason: Reason::new(reason), retry_in },
        answer: None,
    }
}

fn lane() -> LaneView {
    LaneView {
        target: None,
        waiting: 3,
        unsent: 0,
        in_flight: 256,
        capacity: 256,
        spilled_since: None,
        starved_since: None,
        oldest_overdue: Some(at(-9)),
        slow: false,
        failed: 0,
        last_failure: None,
    }
}

fn view(lanes: Vec<LaneView>) -> NamespaceView {
    NamespaceView { owner: OwnerView { lanes, ..OwnerView::default() }, ..NamespaceView::default() }
}

fn workers(count: usize, lanes: Vec<LaneView>) -> NamespaceView {
    let worker = WorkerView {
        label: WorkerLabel::default(),
        queues: vec![Queue::new("emails").unwrap()],
        in_flight: 1,
        credit: 1,
        since: at(-100),
    };
    NamespaceView { workers: vec![worker; count], ..view(lanes) }
}

fn explained(task: &Task, view: Option<&NamespaceView>) -> TaskExplanation {
    explain(&Facts { task, now: NOW, owner: None, view })
}

#[test]
fn each_planted_cause_is_named_in_one_sentence() {
    use WaitingFor as W;
    let idle = view(vec![]);
    let cron = Cron::new("30 2 * * *", Zone::new("Europe/Berlin").unwrap(), Dst::default());
    let cron = Schedule::Cron { cron: cron.unwrap().into(), series: Arc::default() };
    let series = Arc::new(Series { jitter: secs(60), ..Series::default() });
    let every = Schedule::Every { interval: secs(3600), series };
    let mut jittered = task(every, queue(), at(100));
    jittered.nominal_at = at(60);
    let mut manual = once(queue(), 5);
    manual.occasion = Occasion::Manual;
    let retried = |reason, pause| Task { attempts: vec![failed(reason, pause)], ..once(hook(), 8) };
    let in_state = |state, target| Task { state, ..once(target, -1) };
    let due = |target| once(target, -20);
    let full = LaneView { in_flight: 1, capacity: 1, waiting: 1, ..lane() };
    let mut away = view(vec![lane()]);
    away.owner.store_away = true;
    let mut no_share = workers(1, vec![LaneView { in_flight: 5, ..lane() }]);
    no_share.owner.share_used_up = true;
    let mut unread = view(vec![]);
    unread.owner.unread_since = Some(at(-30));
    let connections = |waits| {
        let lane = LaneView { unsent: 2, in_flight: 0, waiting: 0, ..lane() };
        NamespaceView { connections: 512, connection_waits: waits, ..view(vec![lane]) }
    };
    let slow = view(vec![LaneView { in_flight: 4, capacity: 4, ..lane() }]);
    let watch = |state| Task { state, ..task(Schedule::watch(secs(60)), queue(), at(60)) };
    for (task, view, waiting_for, says) in [
        (once(hook(), 90), Some(&idle), W::Time, "waits for its time: it is due at"),
        (task(cron, queue(), at(90)), Some(&idle), W::Time, "by cron \"30 2 * * *\" in Europe/"),
        (jittered, Some(&idle), W::Time, "in 1m40s, every 1h"),
        (watch(TaskState::Scheduled), Some(&idle), W::Time, "if it is not touched within 1m"),
        (manual, Some(&idle), W::Time, "is due at 2030-03-17T17:46:45.000Z, in 5s."),
        (
            retried("status 500", None),
            Some(&idle),
            W::Retry,
            "because attempt 1 failed: status 500",
        ),
        (retried("busy", Some(secs(8))), Some(&idle), W::Retry, "asked for a pause of 8s"),
        (due(queue()), Some(&idle), W::Worker, "20s overdue: no worker is connected to queue \"em"),
        (
            due(queue()),
            Some(&workers(1, vec![full])),
            W::Capacity,
            "1 worker of queue \"emails\" has 1",
        ),
        (
            due(queue()),
            Some(&no_share),
            W::Limit,
            "namespace \"shop\" has as much in flight as its",
        ),
        (due(hook()), Some(&view(vec![lane()])), W::Capacity, "has 256 deliveries that it has not"),
        (due(hook()), Some(&slow), W::Capacity, "http://shop.test:9 is slow: it did not answer"),
        (
            due(hook()),
            Some(&connections(9)),
            W::Capacity,
            "2 deliveries to http://shop.test:9 wait",
        ),
        (due(hook()), Some(&connections(0)), W::Capacity, "a connection to http://shop.test:9 is"),
        (due(hook()), Some(&unread), W::Capacity, "more due tasks than memory, and has read them"),
        (due(hook()), Some(&away), W::Owner, "its owner cannot reach the store"),
        (due(hook()), None, W::Owner, "waits for an owner: no broker owns partition"),
        (once(hook(), 0), Some(&idle), W::Nothing, "it is being sent"),
        (in_state(TaskState::Paused, queue()), Some(&idle), W::Pause, "is paused since 2030-03-17"),
        (in_state(TaskState::Firing, queue()), Some(&idle), W::Worker, "has attempt 1 and has not"),
        (in_state(TaskState::Firing, hook()), Some(&idle), W::Nothing, "which has 10s to answer"),
        (watch(TaskState::Done), Some(&idle), W::Nothing, "a watch that has fired; a touch arms"),
    ] {
        let got = explained(&task, view);
        assert_eq!(got.waiting_for, waiting_for, "{}", got.summary);
        assert!(got.summary.contains(says), "{says:?} is not in {:?}", got.summary);
        assert!(got.summary.starts_with("Task \"order-1\" ") && got.summary.ends_with('.'));
        assert!(!got.summary.contains('\n'), "{:?}", got.summary);
    }
}

#[test]
fn the_details_say_why_the_time_is_as_it_is() {
    let berlin = Zone::new("Europe/Berlin").unwrap();
    let cron = Cron::new("30 2 * * *", berlin, Dst::default()).unwrap();
    // The clocks go from 02:00 to 03:00.
    let before = Timestamp::parse_rfc3339("2030-03-30T12:00:00Z").unwrap();
    let gap = cron.next_after(before).unwrap();
    let schedule = Schedule::Cron { cron: cron.into(), series: Arc::default() };
    let mut jumped = task(schedule, queue(), gap);
    jumped.fire_at = gap.after(secs(7));
    let mut suspect = view(vec![]);
    suspect.clock_suspect = Some("it was set".to_owned());
    let facts = Facts { task: &jumped, now: before, owner: Some("a:1"), view: Some(&suspect) };
    let details = explain(&facts).details.join("\n");
    for says in [
        "Its local time is 2030-03-31T03:00:00+02:00[Europe/Berlin].",
        "Clock change: ",
        "by 7s.",
        "misfire fire_once",
        "The clock of the owner is suspect: it was set.",
    ] {
        assert!(details.contains(says), "{says:?} is not in:\n{details}");
    }

    let mut expiring = once(queue(), -20);
    let definition = Arc::make_mut(&mut expiring.definition);
    definition.expires_after = Some(secs(60));
    definition.guarantee = Guarantee::AtMostOnce;
    let parked = LaneView { spilled_since: Some(at(-20)), waiting: 0, ..lane() };
    let details = explained(&expiring, Some(&view(vec![parked]))).details.join("\n");
    for says in ["The fire expires at 2030-03-17T17:47:20.000Z.", "wait in the store only."] {
        assert!(details.contains(says), "{says:?} is not in:\n{details}");
    }
    let silent = Facts { task: &expiring, now: NOW, owner: Some("a:1"), view: None };
    let got = explain(&silent);
    assert!(got.summary.contains("broker a:1, which owned partition 0 last, does not answer"));
    let details = got.details.join("\n");
    assert!(details.contains("as the store has it"), "{details}");
}

#[test]
fn an_ended_task_waits_for_nothing_and_says_how_it_ended() {
    let due = at(-20);
    let record = |end, attempts| FireRecord {
        fire_id: FireId { task: TaskId::floor(due), nominal_at: due },
        redriven_as: None,
        namespace: Namespace::new("shop").unwrap(),
        key: Some(TaskKey::new("order-1").unwrap()),
        ended_at: at(-4),
        end,
        attempts,
        due_at: due,
        occasion: Occasion::Due,
        labels: Labels::default(),
    };
    let attempts = || vec![failed("status 500", None)];
    for (record, says) in [
        (record(FireEnd::Done, attempts()), "is done: its last fire succeeded at 2030-"),
        (record(FireEnd::Dead(DeadReason::Exhausted), attempts()), "(failed: status 500)"),
        (record(FireEnd::Dead(DeadReason::Expired), vec![]), "(no attempt was made)"),
        (record(FireEnd::Dead(DeadReason::Unknown), vec![]), "the outcome is not known"),
        (record(FireEnd::Cancelled, vec![]), "was cancelled at 2030-"),
        (record(FireEnd::Replaced, vec![]), "was replaced at 2030-"),
    ] {
        let got = explain_ended(&record);
        assert_eq!(got.waiting_for, WaitingFor::Nothing);
        assert!(got.summary.contains(says), "{says:?} is not in {:?}", got.summary);
    }
}

#[test]
fn the_message_of_a_failing_receiver_is_in_the_sentence_on_one_line() {
    let long = "x".repeat(2 * ANSWER_CHARS_MAX);
    let cut = format!("HTTP 500: {}….", &long[..ANSWER_CHARS_MAX]);
    for (body, complete, says) in [
        (&b"boom: db locked"[..], true, "because attempt 1 failed: HTTP 500: boom: db locked."),
        (b" boom:\r\n\tdb\x1b locked\n", true, "failed: HTTP 500: boom: db locked."),
        (b"f\xc3", false, "failed: HTTP 500: f."),
        (b"", true, "failed: HTTP 500."),
        (b"\n", true, "failed: HTTP 500."),
        (b"\xff\x00", true, "failed: HTTP 500."),
        (long.as_bytes(), true, &cut),
    ] {
        let answer = Answer::of_response(500, "text/plain", body, complete, 1024);
        let attempt = AttemptRecord { answer: Some(answer.into()), ..failed("HTTP 500", None) };
        let retried = Task { attempts: vec![attempt], ..once(hook(), 8) };
        let summary = explained(&retried, Some(&view(vec![]))).summary;
        assert!(summary.ends_with(says), "{says:?} is not in {summary:?}");
    }
}

#[test]
fn the_next_fires_of_a_task_follow_its_schedule() {
    let local =
        |fires: &[UpcomingFire]| fires.iter().map(|fire| fire.local.clone()).collect::<Vec<_>>();
    let series = Arc::new(Series { count: Some(3), ..Series::default() });
    let every = task(Schedule::Every { interval: secs(60), series }, queue(), at(0));
    assert_eq!(next_fires(&every, NOW).len(), 3, "the series has three fires");
    let paused = Task { state: TaskState::Paused, ..every.clone() };
    assert_eq!(next_fires(&paused, NOW), []);
    let firing = Task { state: TaskState::Firing, ..every };
    assert_eq!(next_fires(&firing, NOW).len(), 2, "the one in flight is not a next one");
    assert_eq!(next_fires(&once(queue(), 5), NOW).len(), 1);
    let watch = task(Schedule::watch(secs(60)), queue(), at(60));
    assert_eq!(next_fires(&watch, NOW).len(), 1);

    let cron = Cron::new("30 2 * * *", Zone::new("Europe/Berlin").unwrap(), Dst::default());
    let cron = cron.unwrap();
    let first = Timestamp::parse_rfc3339("2030-03-29T12:00:00Z").unwrap();
    let first = cron.next_after(first).unwrap();
    let daily = Schedule::Cron { cron: cron.into(), series: Arc::default() };
    let fires = next_fires(&task(daily, queue(), first), NOW);
    let days =
        ["30T02:30:00+01", "31T03:00:00+02"].map(|day| format!("2030-03-{day}:00[Europe/Berlin]"));
    assert_eq!(local(&fires)[..2], days);
    assert_eq!(fires.len(), 5);
    assert!(fires[1].why.as_deref().is_some_and(|why| !why.is_empty()), "{fires:?}");
    let retried = Task { attempts: vec![failed("no", None)], ..once(queue(), 5) };
    assert_eq!(next_fires(&retried, NOW)[0].why.as_deref(), Some("attempt 2, a retry"));

    // A fire that is in flight for five and a half intervals.
    for (overlap, next) in
        [(Overlap::Allow, at(30)), (Overlap::Skip, at(30)), (Overlap::QueueOne, at(-270))]
    {
        let series = Arc::new(Series { overlap, ..Series::default() });
        let every = task(Schedule::Every { interval: secs(60), series }, queue(), at(-330));
        let firing = Task { state: TaskState::Firing, ..every };
        assert_eq!(next_fires(&firing, NOW)[0].fire_at, next, "{overlap:?}");
    }
}

#[test]
fn the_next_fires_of_a_task_with_overlapping_ones_in_flight_are_not_due_yet() {
    let fire_times =
        |task: &Task| next_fires(task, NOW).iter().map(|fire| fire.fire_at).collect::<Vec<_>>();
    let firing = |count, first| {
        let series = Arc::new(Series { count: Some(count), ..Series::default() });
        let every = task(Schedule::Every { interval: secs(60), series }, queue(), at(first));
        Task { state: TaskState::Firing, ..every }
    };
    // Two are in flight; the third is the last.
    let two = firing(3, -90).with_next_fire(&[]).unwrap();
    assert_eq!((two.fire_at, two.overlapping.len()), (at(-30), 1));
    assert_eq!(fire_times(&two), [at(30)]);
    // The second has ended, and the third waits for its time.
    let three = two.next_step(TaskState::Done, NOW).next.unwrap();
    assert_eq!((three.fire_at, three.overlapping.len()), (at(30), 1));
    assert_eq!(fire_times(&three), [at(30)]);
    // Both are in flight, and there is no third.
    let last = firing(2, -90).with_next_fire(&[]).unwrap();
    assert_eq!(fire_times(&last), []);
    // As many are open as may be: the next one is due, and waits until one of them has ended.
    let (mut all, mut in_flight) = (firing(1000, -6000), Vec::new());
    while let Some(next) = all.with_next_fire(&in_flight) {
        in_flight.push(all.nominal_at);
        all = next;
    }
    assert_eq!(fire_times(&all)[0], all.fire_at.after(secs(60)));
}

#[test]
fn every_reason_to_wait_has_a_name_of_its_own() {
    let mut names: Vec<_> = WaitingFor::ALL.map(WaitingFor::name).into();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), WaitingFor::ALL.len());
}
