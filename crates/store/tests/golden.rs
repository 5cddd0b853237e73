//! Golden bytes of every format that `punctual_store::codec` writes.
//!
//! The files are in `tests/golden/`, one value each, as hexadecimal text. Each test encodes fixed
//! values and compares them with the files byte for byte, then decodes the files and compares the
//! result with the values.
//!
//! A new value: add it here and run the test once with `PUNCTUAL_GOLDEN=write`, which writes
//! missing files and never changes existing ones. A file that no longer matches means that tasks
//! on the disks of users can no longer be read: do not edit the file, add a format number.

#![allow(clippy::unwrap_used, reason = "the values are fixed")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::*;
use punctual_store::Head;
use punctual_store::codec::*;
use punctual_store::conformance::fixtures::{
    answered_task, at, attempts, epoch, id, key, partition, rich_task,
};
use punctual_store::conformance::golden::GoldenFiles;

const CREATED_AT: Timestamp = Timestamp::from_millis(1_699_999_999_999);

fn golden(folder: &str) -> GoldenFiles {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    GoldenFiles::open(root.join(folder))
}

/// Encodes each value, compares it with its file, and decodes the file.
fn check_all<T: PartialEq + Debug>(
    folder: &str,
    values: impl IntoIterator<Item = (String, T)>,
    put: impl Fn(&mut Vec<u8>, &T),
    read: impl Fn(&[u8]) -> T,
) {
    let mut files = golden(folder);
    for (name, value) in values {
        let mut bytes = Vec::new();
        put(&mut bytes, &value);
        let kept = files.check(&name, &bytes);
        assert_eq!(read(&kept), value, "{folder}/{name}");
    }
    files.finish();
}

fn named<T>(values: Vec<(&str, T)>) -> impl Iterator<Item = (String, T)> {
    values.into_iter().map(|(name, value)| (name.to_owned(), value))
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn some_id() -> TaskId {
    id(at(60), partition(3), epoch(2), 7)
}

fn largest_id() -> TaskId {
    let sequence = Sequence::new((1 << 42) - 1).unwrap();
    TaskId::new(Timestamp::MAX, partition(PARTITIONS_MAX - 1), Epoch::MAX, sequence)
}

fn orders() -> Target {
    Target::Queue(Queue::new("orders").unwrap())
}

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn once() -> Schedule {
    Schedule::Once(Due::At(at(60)))
}

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Labels::new(BTreeMap::from(pairs)).unwrap()
}

fn plain_new_task() -> NewTask {
    NewTask::new(shop(), once(), orders())
}

fn plain_task() -> Task {
    Task::new(some_id(), Arc::new(plain_new_task()), CREATED_AT, Version::FIRST)
}

fn series(misfire: Misfire, overlap: Overlap) -> Arc<Series> {
    Arc::new(Series { misfire, overlap, ..Series::default() })
}

fn full_series() -> Arc<Series> {
    Arc::new(Series {
        starts_at: Some(at(1)),
        ends_at: Some(Timestamp::MAX),
        count: Some(u32::MAX),
        misfire: Misfire::FireAll,
        overlap: Overlap::QueueOne,
        jitter: Duration::new(1, 999_999_999),
    })
}

fn cron(expression: &str, zone: &str, dst: Dst) -> Arc<Cron> {
    Arc::new(Cron::new(expression, Zone::new(zone).unwrap(), dst).unwrap())
}

/// Every kind of schedule, and every rule that a schedule can have.
fn schedules() -> Vec<(&'static str, Schedule)> {
    let every = |series| Schedule::Every { interval: Duration::new(0, 100_000_000), series };
    let daily = |gap, overlap| Schedule::Cron {
        cron: cron("0 9 * * MON-FRI", "Europe/Berlin", Dst { gap, overlap }),
        series: Arc::default(),
    };
    let watch =
        |postpone_max, on_return| Schedule::Watch { within: secs(300), postpone_max, on_return };
    vec![
        ("once_at", once()),
        ("once_at_the_epoch", Schedule::Once(Due::At(Timestamp::EPOCH))),
        ("once_at_the_last_instant", Schedule::Once(Due::At(Timestamp::MAX))),
        ("once_in", Schedule::Once(Due::In(Duration::new(7, 1)))),
        ("once_in_the_longest", Schedule::Once(Due::In(Duration::MAX))),
        ("every", every(Arc::default())),
        ("every_full_series", every(full_series())),
        ("every_fire_all_skip", every(series(Misfire::FireAll, Overlap::Skip))),
        ("every_skip_queue_one", every(series(Misfire::Skip, Overlap::QueueOne))),
        ("every_skip_skip", every(series(Misfire::Skip, Overlap::Skip))),
        ("cron", daily(None, None)),
        ("cron_gap_after_twice_once", daily(Some(Gap::After), Some(Twice::Once))),
        ("cron_gap_skip_twice_both", daily(Some(Gap::Skip), Some(Twice::Both))),
        (
            "cron_full_series",
            Schedule::Cron {
                cron: cron("0 0 12 L * ? 2030-2040", "America/New_York", Dst::default()),
                series: full_series(),
            },
        ),
        (
            "cron_daily_utc",
            Schedule::Cron { cron: cron("@daily", "UTC", Dst::default()), series: Arc::default() },
        ),
        ("watch", watch(None, false)),
        ("watch_on_return", watch(None, true)),
        ("watch_postpone_max", watch(Some(Duration::new(86_400, 1)), false)),
        ("watch_postpone_max_on_return", watch(Some(Duration::MAX), true)),
    ]
}

fn webhook(method: Method, headers: &[(&str, &str)]) -> Target {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let url = "https://example.org/hook?a=b";
    Target::Http(HttpTarget::new(url, method, headers.collect()).unwrap())
}

fn statement(params: &[(&str, &str)]) -> Target {
    let param =
        |(name, value): &(&str, &str)| SqlParam { name: (*name).into(), value: (*value).into() };
    let params = params.iter().map(param).collect();
    let call = SqlCall::new(StatementName::new("order-paid").unwrap(), params).unwrap();
    let connection = ConnectionName::new("shop-db").unwrap();
    Target::Sink(Box::new(SinkTarget { connection, address: SinkAddress::Sql(call) }))
}

fn messages(system: MessageSystem, place: &str, options: MessageOptions) -> Target {
    let address = SinkAddress::Message(MessageAddress::new(system, place, options).unwrap());
    let connection = ConnectionName::new("events").unwrap();
    Target::Sink(Box::new(SinkTarget { connection, address }))
}

fn message_targets() -> Vec<(&'static str, Target)> {
    let none = MessageOptions::default;
    let full = |key: &str| {
        let headers = vec![("X-Tenant".to_owned(), "Köln".to_owned()), ("e".into(), "".into())];
        MessageOptions { key: Some(key.to_owned()), headers, ..none() }
    };
    let retained = MessageOptions { qos: MqttQos::ExactlyOnce, retain: true, ..none() };
    let longest = MessageOptions { stream_length: Some(STREAM_LENGTH_MAX), ..none() };
    vec![
        ("kafka", messages(MessageSystem::Kafka, "orders.expired", none())),
        ("kafka_full", messages(MessageSystem::Kafka, "orders", full(""))),
        ("amqp", messages(MessageSystem::Amqp, "", none())),
        ("amqp_full", messages(MessageSystem::Amqp, "orders", full("paid.eu"))),
        ("nats", messages(MessageSystem::Nats, "orders.expired", none())),
        ("mqtt", messages(MessageSystem::Mqtt, "geräte/7/down", none())),
        ("mqtt_full", messages(MessageSystem::Mqtt, "a", retained)),
        ("redis_stream", messages(MessageSystem::RedisStream, "orders:{shop}", none())),
        ("redis_stream_full", messages(MessageSystem::RedisStream, "a", longest)),
    ]
}

fn grpc() -> Target {
    let url = "https://orders.example.org:50051";
    Target::Grpc(Box::new(GrpcTarget::new(url, "/shop.v1.Orders/Cancel").unwrap()))
}

fn targets() -> Vec<(&'static str, Target)> {
    let mut targets = vec![
        ("queue", orders()),
        ("http_get", webhook(Method::Get, &[])),
        ("http_post", webhook(Method::Post, &[])),
        ("http_put", webhook(Method::Put, &[])),
        ("http_patch", webhook(Method::Patch, &[("X-Tenant", "a, b"), ("x-empty", "")])),
        ("http_delete", webhook(Method::Delete, &[])),
        ("sink_sql", statement(&[])),
        ("sink_sql_params", statement(&[("order", "7"), ("note", "\"Köln\"")])),
        ("grpc", grpc()),
    ];
    targets.extend(message_targets());
    targets
}

fn payloads() -> Vec<(&'static str, Payload)> {
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let content_type = "application/x-thing; v=2".into();
    vec![
        ("empty", Payload::Empty),
        ("json", Payload::Json(r#"{"order":42,"city":"Köln"}"#.into())),
        ("binary", Payload::Binary { bytes: every_byte.into(), content_type }),
    ]
}

fn retries() -> Vec<(&'static str, RetryPolicy)> {
    let policy = |attempts_max, jitter, backoff| RetryPolicy {
        attempts_max,
        backoff,
        jitter: Jitter::from_thousandths(jitter).unwrap(),
    };
    let exponential = Backoff::Exponential {
        first: Duration::from_millis(1500),
        factor_thousandths: u32::MAX,
        max: Duration::MAX,
    };
    vec![
        ("fixed", policy(1, 0, Backoff::Fixed(secs(30)))),
        ("exponential", policy(u16::MAX, 1000, exponential)),
        ("list", policy(100, 250, Backoff::List(vec![Duration::ZERO, secs(1), secs(86_400)]))),
        ("empty_list", policy(3, 500, Backoff::List(Vec::new()))),
    ]
}

#[test]
fn what_callers_ask_for() {
    let mut values = vec![("plain".to_owned(), plain_new_task())];
    for (name, schedule) in schedules() {
        let value = NewTask { schedule, ..plain_new_task() };
        values.push((format!("schedule_{name}"), value));
    }
    for (name, target) in targets() {
        values.push((format!("target_{name}"), NewTask { target, ..plain_new_task() }));
    }
    for (name, payload) in payloads() {
        values.push((format!("payload_{name}"), NewTask { payload, ..plain_new_task() }));
    }
    for (name, retry) in retries() {
        values.push((format!("retry_{name}"), NewTask { retry, ..plain_new_task() }));
    }
    for (name, guarantee) in [
        ("at_most_once", Guarantee::AtMostOnce),
        ("at_least_once", Guarantee::AtLeastOnce),
        ("exactly_once", Guarantee::ExactlyOnce),
    ] {
        values.push((format!("guarantee_{name}"), NewTask { guarantee, ..plain_new_task() }));
    }
    let labels = labels([("empty", ""), ("stadt", "Köln"), ("zone", "eu west")]);
    values.extend(named(vec![
        ("key", NewTask { key: Some(key("order/42")), ..plain_new_task() }),
        ("key_unicode", NewTask { key: Some(key("geräte/halle 3/Ω/時計")), ..plain_new_task() }),
        ("timeout", NewTask { timeout: Duration::from_millis(12_345), ..plain_new_task() }),
        ("timeout_longest", NewTask { timeout: Duration::MAX, ..plain_new_task() }),
        ("expires_after", NewTask { expires_after: Some(secs(99)), ..plain_new_task() }),
        ("labels", NewTask { labels, ..plain_new_task() }),
        ("everything", NewTask::clone(&rich_task(some_id()).definition)),
    ]));
    let read = |bytes: &[u8]| read_new_task(bytes, &Interner::default()).unwrap();
    check_all("new_task", values, put_new_task, read);
}

fn overlapping(occasion: Occasion, attempts: Vec<AttemptRecord>) -> OverlappingFire {
    OverlappingFire { nominal_at: at(61), fire_at: at(62), attempts, occasion }
}

fn tasks() -> Vec<(&'static str, Task)> {
    // The first formats have no time of the last change.
    let not_updated =
        |(name, task): (&'static str, Task)| (name, Task { updated_at: task.created_at, ..task });
    let mut tasks: Vec<_> = tasks_of_the_first_formats().into_iter().map(not_updated).collect();
    tasks.push(("answered", answered_task(some_id())));
    tasks
}

fn tasks_of_the_first_formats() -> Vec<(&'static str, Task)> {
    let in_state = |state| Task { state, ..plain_task() };
    let keyed = |key| {
        let definition = NewTask { key: Some(key), ..plain_new_task() };
        Task { definition: Arc::new(definition), ..plain_task() }
    };
    let receipt = NewTask {
        namespace: shop().of_receipts(),
        key: Some(key("order-42")),
        target: Target::Queue(Queue::new("receipts").unwrap()),
        labels: labels([("digest", "9f86d081"), ("task", &some_id().to_string())]),
        ..plain_new_task()
    };
    let largest = Task {
        id: largest_id(),
        created_at: Timestamp::MAX,
        updated_at: Timestamp::MAX,
        fire_at: Timestamp::MAX,
        nominal_at: Timestamp::MAX,
        version: Version::new(u64::MAX),
        ..plain_task()
    };
    let progress_of_every_kind = Task {
        resumes_at: Some(at(77)),
        fires: u32::MAX,
        armed_at: Some(at(78)),
        given_at: Some(at(79)),
        overlapping: vec![
            overlapping(Occasion::Due, Vec::new()),
            overlapping(Occasion::Manual, attempts()),
            overlapping(Occasion::Return, Vec::new()),
        ],
        attempts: attempts(),
        ..plain_task()
    };
    let redriven = Task { attempts: attempts(), ..plain_task() }.redriven(at(99));
    let mut redriven_often = redriven.clone();
    for attempt in &mut redriven_often.attempts {
        attempt.number = AttemptNo::new(attempt.number.get() + 1_000_000);
    }
    let redriven_often = redriven_often.redriven(Timestamp::MAX);
    vec![
        ("redriven", redriven),
        ("redriven_often", redriven_often),
        ("redriven_apart", redriven_apart()),
        ("redriven_apart_without_key", redriven_apart_without_key()),
        ("scheduled", plain_task()),
        ("firing", in_state(TaskState::Firing)),
        ("paused", in_state(TaskState::Paused)),
        ("done", in_state(TaskState::Done)),
        ("dead", in_state(TaskState::Dead)),
        ("cancelled", in_state(TaskState::Cancelled)),
        ("key", keyed(key("order/42"))),
        ("key_unicode", keyed(key("geräte/halle 3/Ω/時計"))),
        ("receipt", Task { definition: Arc::new(receipt), ..plain_task() }),
        ("postponed", Task { fire_at: at(90), nominal_at: at(80), ..plain_task() }),
        ("largest_numbers", largest),
        ("smallest_numbers", Task { id: TaskId::floor(Timestamp::EPOCH), ..smallest_task() }),
        ("attempts", Task { attempts: attempts(), ..plain_task() }),
        ("occasion_manual", Task { occasion: Occasion::Manual, ..plain_task() }),
        ("occasion_return", Task { occasion: Occasion::Return, ..plain_task() }),
        ("resumes_at", Task { resumes_at: Some(at(77)), ..plain_task() }),
        ("fires_none_yet", Task { fires: 0, ..plain_task() }),
        ("fires_many", Task { fires: u32::MAX, ..plain_task() }),
        ("armed_at", Task { armed_at: Some(at(78)), ..plain_task() }),
        ("given_at", Task { given_at: Some(at(79)), ..plain_task() }),
        (
            "overlapping",
            Task { overlapping: vec![overlapping(Occasion::Due, attempts())], ..plain_task() },
        ),
        ("progress_of_every_kind", progress_of_every_kind),
        ("everything", rich_task(some_id())),
    ]
}

/// A redriven fire of a series.
fn redriven_apart() -> Task {
    rich_task(some_id()).redriven_apart(id(at(99), partition(3), epoch(2), 8), at(99))
}

fn redriven_apart_without_key() -> Task {
    let series = NewTask { schedule: Schedule::every(secs(60)), ..plain_new_task() };
    let series = Task { definition: Arc::new(series), ..plain_task() };
    series.redriven_apart(largest_id(), at(99))
}

fn smallest_task() -> Task {
    Task {
        created_at: Timestamp::EPOCH,
        fire_at: Timestamp::EPOCH,
        nominal_at: Timestamp::EPOCH,
        version: Version::new(0),
        ..plain_task()
    }
}

#[test]
fn whole_tasks() {
    let read = |bytes: &[u8]| read_task(bytes, &Interner::default()).unwrap();
    check_all("task", named(tasks()), put_task, read);
}

#[test]
fn the_body_of_a_task_follows_its_id_and_its_time() {
    let mut files = golden("task");
    for (name, task) in tasks() {
        let file = files.read(name);
        let mut body = Vec::new();
        put_body(&mut body, &task);
        assert!(file.ends_with(&body), "{name}");
        let read = read_body(task.id, task.fire_at, &body, &Interner::default());
        assert_eq!(read, Ok(task.clone()), "{name}");
        let summary = read_summary(task.id, task.fire_at, &body).unwrap();
        assert_eq!(summary.namespace, task.definition.namespace.as_str(), "{name}");
        assert_eq!(summary.key, task.definition.key.as_ref().map(TaskKey::as_str), "{name}");
        assert_eq!(summary.head, Head::of(&task), "{name}");
        assert_eq!(read_state(&body), Ok(task.state), "{name}");
        assert_eq!(read_named(&body), Ok(task.definition.key.is_some()), "{name}");
    }
}

#[test]
fn bodies_of_format_2_are_still_read() {
    let mut files = golden("task_body_format_2");
    let kept = files.read("occasion_manual");
    let resumes_at = Some(at(77));
    let want = Task { resumes_at, occasion: Occasion::Manual, ..plain_task() };
    let read = read_body(want.id, want.fire_at, &kept, &Interner::default());
    assert_eq!(read, Ok(want));
    files.finish();
}

#[test]
fn heads() {
    let mut values = Vec::new();
    for (name, schedule) in schedules() {
        let head = Head { schedule, ..Head::of(&plain_task()) };
        values.push((format!("schedule_{name}"), head));
    }
    let task = Head::of(&plain_task());
    for (name, state) in [("paused", TaskState::Paused), ("dead", TaskState::Dead)] {
        values.push((name.to_owned(), Head { state, ..task.clone() }));
    }
    let largest = tasks().into_iter().filter(|(name, _)| name.ends_with("_numbers"));
    values.extend(largest.map(|(name, task)| (name.to_owned(), Head::of(&task))));
    check_all("head", values, put_head, |bytes| read_head(bytes).unwrap());
}

#[test]
fn records_of_fires() {
    let task = Task { attempts: attempts(), ..plain_task() };
    let ended = |end| FireRecord::of(&task, end, at(99));
    let answered = answered_task(some_id());
    let plain = |record| {
        let (labels, occasion) = (Labels::default(), Occasion::Due);
        FireRecord { labels, occasion, ..record }
    };
    let skipped = |fires, until, why| ended(FireEnd::Skipped(Skipped { fires, until, why }));
    let fire_id = FireId { task: largest_id(), nominal_at: Timestamp::MAX };
    let named_task = rich_task(some_id());
    let mut all = tasks().into_iter();
    let (_, redriven_often) = all.find(|(name, _)| *name == "redriven_often").unwrap();
    let values = vec![
        ("done", ended(FireEnd::Done)),
        ("cancelled", ended(FireEnd::Cancelled)),
        ("replaced", ended(FireEnd::Replaced)),
        ("skipped_misfire", skipped(1, at(70), SkipReason::Misfire)),
        ("skipped_overlap", skipped(7, at(71), SkipReason::Overlap)),
        ("skipped_paused", skipped(u32::MAX, Timestamp::MAX, SkipReason::Paused)),
        ("dead_exhausted", ended(FireEnd::Dead(DeadReason::Exhausted))),
        ("dead_refused", ended(FireEnd::Dead(DeadReason::Refused))),
        ("dead_expired", ended(FireEnd::Dead(DeadReason::Expired))),
        ("dead_unknown", ended(FireEnd::Dead(DeadReason::Unknown))),
        ("without_attempts", FireRecord::of(&plain_task(), FireEnd::Done, at(99))),
        ("key_unicode", plain(FireRecord::of(&named_task, FireEnd::Done, at(99)))),
        ("labelled", FireRecord::of(&named_task, FireEnd::Done, at(99))),
        ("answered", FireRecord::of(&answered, FireEnd::Done, at(99))),
        ("manual", FireRecord { occasion: Occasion::Manual, ..ended(FireEnd::Done) }),
        ("due_later_than_nominal", FireRecord { due_at: at(61), ..ended(FireEnd::Done) }),
        ("receipt", FireRecord { namespace: shop().of_receipts(), ..ended(FireEnd::Cancelled) }),
        ("redriven_apart", plain(FireRecord::of(&redriven_apart(), FireEnd::Done, at(99)))),
        (
            "redriven_apart_without_key",
            plain(FireRecord::of(&redriven_apart_without_key(), FireEnd::Done, at(99))),
        ),
        ("redriven_often", plain(FireRecord::of(&redriven_often, FireEnd::Done, at(99)))),
        (
            "largest_numbers",
            FireRecord {
                fire_id,
                ended_at: Timestamp::MAX,
                due_at: Timestamp::MAX,
                ..ended(FireEnd::Done)
            },
        ),
    ];
    let read = |bytes: &[u8]| {
        let record = read_record(bytes, &Interner::default()).unwrap();
        assert_eq!(read_record_id(bytes), Ok((record.fire_id, record.ended_at)));
        let name = RecordName {
            fire_id: record.fire_id,
            task_id: record.task_id(),
            ended_at: record.ended_at,
            end: record.end.kind(),
            namespace: record.namespace.as_str(),
            key: record.key.as_ref().map(TaskKey::as_str),
        };
        assert_eq!(read_record_name(bytes), Ok(name));
        record
    };
    check_all("record", named(values), put_record, read);
}

#[test]
fn dead_letters() {
    let letter = |task, reason| DeadLetter { task, died_at: at(99), reason };
    let dead = Task { state: TaskState::Dead, attempts: attempts(), ..plain_task() };
    let rich = rich_task(some_id());
    let last = DeadLetter { died_at: Timestamp::MAX, ..letter(rich.clone(), DeadReason::Refused) };
    let values = vec![
        ("exhausted", letter(dead.clone(), DeadReason::Exhausted)),
        ("refused", letter(dead.clone(), DeadReason::Refused)),
        ("expired", letter(dead.clone(), DeadReason::Expired)),
        ("unknown", letter(dead, DeadReason::Unknown)),
        ("everything", letter(rich, DeadReason::Exhausted)),
        ("last_instant", last),
        ("redriven_apart", letter(redriven_apart(), DeadReason::Exhausted)),
    ];
    let read = |bytes: &[u8]| read_letter(bytes, &Interner::default()).unwrap();
    check_all("dead_letter", named(values), put_letter, read);
}

#[test]
fn outcomes_and_payloads_on_their_own() {
    let failed = |retry_in| Outcome::Failed { reason: Reason::new("HTTP 503: später"), retry_in };
    let outcomes = vec![
        ("acked", Outcome::Acked),
        ("failed", failed(None)),
        ("failed_retry_in", failed(Some(Duration::new(1, 500_000_000)))),
        ("failed_retry_in_longest", failed(Some(Duration::MAX))),
        ("refused", Outcome::Refused { reason: Reason::new("no such order: 時計") }),
        ("refused_without_reason", Outcome::Refused { reason: Reason::new("") }),
        ("expired", Outcome::Expired),
    ];
    let read = |bytes: &[u8]| read_result(&mut Reader::new(bytes)).unwrap().outcome;
    let put = |out: &mut Vec<u8>, outcome: &Outcome| put_result(out, outcome, None);
    check_all("outcome", named(outcomes), put, read);
    let read = |bytes: &[u8]| read_payload(&mut Reader::new(bytes)).unwrap();
    check_all("payload", named(payloads()), put_payload, read);
}

#[test]
fn numbers_texts_times_and_ids() {
    let numbers = vec![
        ("0", 0),
        ("127", 127),
        ("128", 128),
        ("16383", 16_383),
        ("16384", 16_384),
        ("largest", u64::MAX),
    ];
    let put = |out: &mut Vec<u8>, value: &u64| put_varint(out, *value);
    check_all("varint", named(numbers), put, |bytes| Reader::new(bytes).varint().unwrap());

    let numbers =
        vec![("0", 0), ("minus_1", -1), ("1", 1), ("smallest", i64::MIN), ("largest", i64::MAX)];
    let put = |out: &mut Vec<u8>, value: &i64| put_signed(out, *value);
    check_all("signed", named(numbers), put, |bytes| Reader::new(bytes).signed().unwrap());

    let texts = vec![("empty", String::new()), ("unicode", "geräte/Ω/時計".to_owned())];
    let put = |out: &mut Vec<u8>, value: &String| put_bytes(out, value.as_bytes());
    check_all("text", named(texts), put, |bytes| Reader::new(bytes).text().unwrap().to_owned());

    let spans = vec![
        ("zero", Duration::ZERO),
        ("nanosecond", Duration::new(0, 1)),
        ("longest", Duration::MAX),
    ];
    let put = |out: &mut Vec<u8>, value: &Duration| put_duration(out, *value);
    check_all("duration", named(spans), put, |bytes| Reader::new(bytes).duration().unwrap());

    let times = vec![("epoch", Timestamp::EPOCH), ("now", at(0)), ("last", Timestamp::MAX)];
    let put = |out: &mut Vec<u8>, value: &Timestamp| put_timestamp(out, *value);
    check_all("timestamp", named(times), put, |bytes| Reader::new(bytes).timestamp().unwrap());

    let ids = vec![
        ("some", some_id()),
        ("smallest", TaskId::floor(Timestamp::EPOCH)),
        ("largest", largest_id()),
    ];
    let put = |out: &mut Vec<u8>, value: &TaskId| put_task_id(out, *value);
    check_all("task_id", named(ids), put, |bytes| Reader::new(bytes).task_id().unwrap());

    let fires = vec![
        ("some", FireId { task: some_id(), nominal_at: at(61) }),
        ("largest", FireId { task: largest_id(), nominal_at: Timestamp::MAX }),
    ];
    let put = |out: &mut Vec<u8>, value: &FireId| put_fire_id(out, *value);
    check_all("fire_id", named(fires), put, |bytes| Reader::new(bytes).fire_id().unwrap());
}

#[test]
fn codes_of_occasions() {
    for (code, occasion) in [(0, Occasion::Due), (1, Occasion::Manual), (2, Occasion::Return)] {
        assert_eq!(occasion_code(occasion), code);
        assert_eq!(occasion_of(code), Ok(occasion));
    }
    assert!(occasion_of(3).is_err());
}
