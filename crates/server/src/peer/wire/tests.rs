//! Every variant is encoded and decoded, and truncated, flipped or invented bytes are refused.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    Answer, AttemptNo, AttemptRecord, Due, FireId, Guarantee, HttpTarget, Labels, Method,
    Namespace, NewTask, Occasion, Outcome, Payload, Queue, Reason, RetryPolicy, Schedule, Target,
    Task, TaskId, TaskKey, Timestamp, Version,
};
use punctual_engine::{
    Cancelled, Command, Condition, EngineError, Gauges, InFlight, Receipt, Reply, Report,
    ScheduleCommand, Scheduled, Skips, StartState, StoredAs, Subject, TouchTo,
};
use punctual_store::Resource;
use punctual_store::codec::Interner;

use super::*;
use crate::courier::queue::{LeaseToken, SettleResult, Settlement, WorkerResult};

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn key() -> TaskKey {
    TaskKey::new("halle 3/Ω").unwrap()
}

fn id() -> TaskId {
    TaskId::floor(Timestamp::from_millis(7000))
}

fn fire_id() -> FireId {
    FireId { task: id(), nominal_at: Timestamp::from_millis(7000) }
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn plain() -> NewTask {
    let schedule = Schedule::Once(Due::In(Duration::from_millis(1500)));
    NewTask::new(shop(), schedule, Target::Queue(Queue::new("orders").unwrap()))
}

fn rich() -> NewTask {
    let headers = vec![("x-a".to_owned(), "b".to_owned())];
    let target = HttpTarget::new("https://example.org/hook", Method::ALL[1], headers).unwrap();
    let labels = BTreeMap::from([("region".to_owned(), "eu".to_owned())]);
    NewTask {
        key: Some(key()),
        schedule: Schedule::watch(Duration::from_secs(30)),
        target: Target::Http(target),
        payload: Payload::Binary {
            bytes: Bytes::from_static(b"\0\xff"),
            content_type: "image/png".into(),
        },
        guarantee: Guarantee::AtMostOnce,
        retry: RetryPolicy { attempts_max: 1, ..RetryPolicy::default() },
        timeout: Duration::from_secs(3),
        expires_after: Some(Duration::from_secs(60)),
        labels: Labels::new(labels).unwrap(),
        ..plain()
    }
}

fn task() -> Task {
    let reason = Reason::new("HTTP 500");
    let failed = Outcome::Failed { reason, retry_in: Some(Duration::from_millis(7)) };
    let attempt = AttemptRecord {
        number: AttemptNo::FIRST,
        fired_at: at(1),
        ended_at: at(2),
        outcome: failed,
        answer: Some(Box::new(Answer::of_response(500, "text/plain", b"boom", true, 1024))),
    };
    let task = Task::new(id(), rich().into(), at(5), Version::new(3));
    Task { attempts: vec![attempt], resumes_at: Some(at(9000)), ..task }
}

fn receipt() -> Receipt {
    Receipt { key: TaskKey::new("request-1").unwrap(), digest: "ab".repeat(32) }
}

fn schedule_commands() -> Vec<ScheduleCommand> {
    let schedule = |new_task: NewTask, condition, receipt| ScheduleCommand {
        new_task: new_task.into(),
        condition,
        receipt,
        start: StartState::Scheduled,
    };
    vec![
        schedule(plain(), Condition::Always, None),
        schedule(rich(), Condition::Absent, Some(receipt())),
        schedule(rich(), Condition::Version(Version::new(u64::MAX)), None),
        ScheduleCommand {
            start: StartState::Paused,
            ..schedule(plain(), Condition::Always, Some(receipt()))
        },
    ]
}

/// One command of each kind, with every variant of its parts.
fn commands() -> Vec<Command> {
    let by_key = || Subject::Key(shop(), key());
    let by_id = || Subject::Id(shop(), id());
    let to = |due| Command::Touch(by_key(), TouchTo::To(due));
    let mut commands: Vec<Command> =
        schedule_commands().into_iter().map(Command::Schedule).collect();
    commands.extend([
        Command::Cancel(by_key()),
        Command::Cancel(by_id()),
        Command::Get(by_id()),
        Command::Get(Subject::Key(Namespace::of_alarms(), key())),
        Command::Get(Subject::Key(shop().of_notices(), key())),
        Command::Touch(by_id(), TouchTo::Within),
        to(Due::At(at(12_345))),
        to(Due::In(Duration::from_millis(250))),
        Command::Pause(by_key()),
        Command::Resume(by_key()),
        Command::Fire(by_key()),
        Command::Redrive { subject: by_key(), fire_id: fire_id() },
        Command::DeleteLetter { namespace: shop(), fire_id: fire_id() },
        Command::Bind(shop(), receipt()),
    ]);
    for command in &commands {
        // When a variant is added, this match fails to compile: add it to the list above too.
        match command {
            Command::Schedule(_) | Command::Cancel(_) | Command::Get(_) | Command::Touch(..) => {}
            Command::Pause(_) | Command::Resume(_) | Command::Fire(_) => {}
            Command::Redrive { .. } | Command::DeleteLetter { .. } | Command::Bind(..) => {}
        }
    }
    commands
}

fn answers() -> punctual_engine::Replies {
    let attempt = AttemptNo::new(4);
    let done = [
        Reply::Scheduled(Scheduled::Created(task())),
        Reply::Scheduled(Scheduled::Replaced(task())),
        Reply::Cancelled(Cancelled::Cancelled),
        Reply::Cancelled(Cancelled::Firing(attempt)),
        Reply::Cancelled(Cancelled::AlreadyFired(at(99))),
        Reply::Task(task()),
        Reply::Touched { fire_at: at(77), version: Version::new(12) },
        Reply::LetterDeleted,
        Reply::Bound,
    ];
    let errors = [
        EngineError::NotFound,
        EngineError::DeadLetterNotFound,
        EngineError::Exists(Box::new(task())),
        EngineError::VersionMismatch(Version::new(8)),
        EngineError::IdempotencyConflict,
        EngineError::Firing(attempt),
        EngineError::Paused,
        EngineError::NotAWatch,
        EngineError::NotTouchable,
        EngineError::Damaged("the task is damaged".into()),
        EngineError::NeverFires,
        EngineError::Busy,
        EngineError::Full(Resource::Disk),
        EngineError::Full(Resource::Memory),
        EngineError::Stopped,
        EngineError::StoreUnavailable,
        EngineError::Lost,
    ];
    done.into_iter().map(Ok).chain(errors.into_iter().map(Err)).collect()
}

fn settlements() -> Vec<(LeaseToken, Settlement)> {
    let reason = || Reason::new("no paper");
    let pause = Duration::from_secs(5);
    let settlements = [
        Settlement::Ack,
        Settlement::AckWith { result: WorkerResult::new(b"{\"paid\":1}").unwrap() },
        Settlement::Fail { reason: reason(), retry_in: None },
        Settlement::Fail { reason: reason(), retry_in: Some(pause) },
        Settlement::Refuse { reason: reason() },
        Settlement::Extend { lease: pause },
    ];
    (0u64..)
        .zip(settlements)
        .map(|(number, settlement)| (LeaseToken(u64::MAX - number), settlement))
        .collect()
}

fn polled() -> Vec<Polled> {
    let polled = |key, payload, occasion, callback_of| Polled {
        token: LeaseToken(u64::MAX),
        lease: Duration::from_secs(10),
        fire_id: fire_id(),
        attempt: AttemptNo::new(2),
        fire_at: at(7000),
        fired_at: at(7001),
        occasion,
        version: Version::FIRST,
        key,
        payload,
        callback_of,
    };
    let json = Payload::Json(Bytes::from_static(b"{}"));
    vec![
        polled(None, Payload::Empty, Occasion::Due, None),
        polled(Some(key()), json, Occasion::Manual, Some(fire_id())),
        polled(Some(key()), rich().payload, Occasion::Return, None),
    ]
}

fn in_flight() -> Vec<InFlight> {
    let callback = Some(TaskId::floor(at(11)));
    let claimed = [
        (false, false, None),
        (true, false, callback),
        (false, true, None),
        (true, true, None),
        (true, true, callback),
    ];
    let claimed = claimed.into_iter().map(|(task_continues, key_reused, callback)| {
        StoredAs::Claimed { task_continues, key_reused, callback }
    });
    let stored = [StoredAs::Filed].into_iter().chain(claimed);
    let in_flight = stored.map(|stored_as| InFlight {
        fire_id: fire_id(),
        // A redriven fire, which belongs to another task.
        task_id: TaskId::floor(at(9)),
        namespace: shop(),
        attempt: AttemptNo::new(100),
        fired_at: at(7001),
        until: at(17_001),
        stored_as,
    });
    in_flight.collect()
}

fn reports() -> Vec<Report> {
    let reason = || Reason::new("HTTP 503");
    let outcomes = [
        None,
        Some(Outcome::Acked),
        Some(Outcome::Failed { reason: reason(), retry_in: None }),
        Some(Outcome::Failed { reason: reason(), retry_in: Some(Duration::from_secs(2)) }),
        Some(Outcome::Refused { reason: reason() }),
        Some(Outcome::Expired),
    ];
    let report = |outcome| Report::of(fire_id(), AttemptNo::new(3), at(7002), outcome);
    outcomes.map(report).into()
}

fn gauges() -> Gauges {
    Gauges {
        loaded: 1,
        queued: 2,
        in_flight: 300,
        firing: 4,
        claimed: 5,
        claimed_unsent: 3,
        claimed_overlapping: 6,
        lanes: 7,
        parked_lanes: 8,
        oldest_overdue: Some(at(9)),
        unread_since: Some(at(12)),
        skips: Skips { misfire: 10, overlap: 11, paused: 1 << 40 },
    }
}

fn written(commands: &[Command]) -> Vec<u8> {
    list_of(commands, put_command)
}

/// Reads bytes as every kind of message.
fn read_anything(bytes: &[u8]) {
    let interner = Interner::default();
    let _ = read_commands(bytes, &interner);
    let _ = read_answers(bytes, &interner);
    let _ = (read_deliveries(bytes), read_in_flight(bytes), read_reports(bytes));
    let _ = (read_settlements(bytes), read_settle_results(bytes), read_gauges(bytes));
}

/// Checks that truncated, extended or flipped bytes are refused or read as another value, and that
/// nothing panics.
fn corrupt<T: Debug>(bytes: &[u8], read: impl Fn(&[u8]) -> WireResult<T>) {
    for end in 0..bytes.len() {
        assert!(read(&bytes[..end]).is_err(), "cut at {end}");
    }
    assert!(read(&[bytes, &[0]].concat()).is_err());
    for version in (0..=u8::MAX).filter(|version| *version != VERSION) {
        let other = [&[version], &bytes[1..]].concat();
        assert_eq!(read(&other).unwrap_err(), WireError::Version(version));
    }
    for index in 0..bytes.len() {
        for flip in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut bytes = bytes.to_vec();
            bytes[index] ^= flip;
            read_anything(&bytes);
        }
    }
}

#[test]
fn every_command_reads_back() {
    let commands = commands();
    let bytes = written(&commands);
    let read = read_commands(&bytes, &Interner::default()).unwrap();
    assert_eq!(format!("{read:?}"), format!("{commands:?}"));
    corrupt(&bytes, |bytes| read_commands(bytes, &Interner::default()));
}

#[test]
fn commands_encoded_separately_form_one_list() {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    put_command(&mut first, &commands()[0]);
    commands()[1..].iter().for_each(|command| put_command(&mut second, command));
    let bytes = list(commands().len(), &[&first, &second]);
    assert_eq!(bytes, written(&commands()));
}

#[test]
fn every_answer_and_every_error_reads_back() {
    let pieces: Vec<_> = answer_pieces(answers()).collect();
    assert_eq!(pieces.len(), 1);
    assert_eq!(read_answers(&pieces[0], &Interner::default()), Ok(answers()));
    corrupt(&pieces[0], |bytes| read_answers(bytes, &Interner::default()));
}

#[test]
fn long_answers_come_in_pieces_and_in_order() {
    let payload = Payload::Json(vec![b' '; 256 * 1024].into());
    let of = |version| {
        let definition = NewTask { payload: payload.clone(), ..plain() };
        Reply::Task(Task::new(id(), definition.into(), at(0), Version::new(version)))
    };
    let long: Vec<_> = (0..10).map(|version| Ok(of(version))).collect();
    let pieces: Vec<_> = answer_pieces(long.clone()).collect();
    assert_eq!(pieces.iter().map(|piece| piece.len() >> 20).collect::<Vec<_>>(), [1, 1, 0]);
    let interner = Interner::default();
    let read = pieces.iter().flat_map(|piece| read_answers(piece, &interner).unwrap());
    assert_eq!(read.collect::<Vec<_>>(), long);
}

#[test]
fn gauges_read_back() {
    for gauges in [gauges(), Gauges::default()] {
        let bytes = put_gauges(&gauges);
        assert_eq!(read_gauges(&bytes), Ok(gauges));
        corrupt(&bytes, read_gauges);
    }
}

#[test]
fn deliveries_and_settlements_read_back() {
    let pieces: Vec<_> = delivery_pieces(polled()).collect();
    assert_eq!(read_deliveries(&pieces[0]), Ok(polled()));
    corrupt(&pieces[0], read_deliveries);

    let bytes = put_settlements(&settlements());
    assert_eq!(format!("{:?}", read_settlements(&bytes).unwrap()), format!("{:?}", settlements()));
    corrupt(&bytes, read_settlements);

    let results = [SettleResult::Accepted, SettleResult::Stale];
    let bytes = put_settle_results(&results);
    assert_eq!(read_settle_results(&bytes).unwrap(), results);
    corrupt(&bytes, read_settle_results);
}

#[test]
fn deliveries_in_flight_and_reports_read_back() {
    let bytes = put_in_flight(&in_flight());
    assert_eq!(read_in_flight(&bytes), Ok(in_flight()));
    corrupt(&bytes, read_in_flight);

    let bytes = put_reports(&reports());
    assert_eq!(read_reports(&bytes), Ok(reports()));
    corrupt(&bytes, read_reports);
}

#[test]
fn a_wrong_count_is_refused_without_allocating_for_it() {
    for count in [2u64, 65_536, 65_537, u64::from(u32::MAX), u64::MAX] {
        let mut bytes = vec![VERSION];
        put_varint(&mut bytes, count);
        bytes.push(0);
        read_anything(&bytes);
        assert!(read_commands(&bytes, &Interner::default()).is_err(), "{count}");
        assert!(read_settlements(&bytes).is_err(), "{count}");
    }
}

#[test]
fn values_beyond_our_limits_are_refused() {
    let schedule = |new_task: NewTask| {
        let new_task = new_task.into();
        Command::Schedule(ScheduleCommand {
            new_task,
            condition: Condition::Always,
            receipt: None,
            start: StartState::Scheduled,
        })
    };
    let over = Payload::Json(vec![b' '; 256 * 1024 + 1].into());
    let receipts = shop().of_receipts();
    let digest = "x".repeat(1000);
    let receipt = Receipt { key: key(), digest };
    let new_task = plain().into();
    for command in [
        schedule(NewTask { payload: over, ..plain() }),
        schedule(NewTask { timeout: Duration::ZERO, ..plain() }),
        schedule(NewTask { namespace: receipts.clone(), ..plain() }),
        schedule(NewTask { callback_of: Some(fire_id()), ..plain() }),
        Command::Bind(shop(), receipt.clone()),
        Command::Bind(receipts.clone(), self::receipt()),
        Command::Schedule(ScheduleCommand {
            new_task,
            condition: Condition::Always,
            receipt: Some(receipt),
            start: StartState::Scheduled,
        }),
        Command::Cancel(Subject::Key(receipts.clone(), key())),
        Command::DeleteLetter { namespace: receipts, fire_id: fire_id() },
        Command::Touch(Subject::Id(shop(), id()), TouchTo::To(Due::In(Duration::MAX))),
    ] {
        let bytes = written(std::slice::from_ref(&command));
        assert!(read_commands(&bytes, &Interner::default()).is_err(), "{command:?}");
    }
    let endless = [(LeaseToken(1), Settlement::Extend { lease: Duration::MAX })];
    assert!(read_settlements(&put_settlements(&endless)).is_err());
}
