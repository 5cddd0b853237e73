//! The codec with random values, and with random bytes.

#![allow(clippy::unwrap_used, reason = "strategies are helpers of tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use punctual_core::*;
use punctual_store::Head;
use punctual_store::codec::*;

fn instant() -> impl Strategy<Value = Timestamp> {
    (0..=Timestamp::MAX.as_millis()).prop_map(Timestamp::from_millis)
}

fn span() -> impl Strategy<Value = Duration> {
    (any::<u64>(), 0..1_000_000_000u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos))
}

fn task_id() -> impl Strategy<Value = TaskId> {
    (instant(), 0..4096u16, 0..1u32 << 26, 0..1u64 << 42).prop_map(|(due, p, epoch, sequence)| {
        let partition = PartitionId::new(p).unwrap();
        TaskId::new(due, partition, Epoch::new(epoch).unwrap(), Sequence::new(sequence).unwrap())
    })
}

fn schedule() -> impl Strategy<Value = Schedule> {
    prop_oneof![
        instant().prop_map(|at| Schedule::Once(Due::At(at))),
        span().prop_map(|delay| Schedule::Once(Due::In(delay))),
        (span(), series()).prop_map(|(interval, series)| Schedule::Every { interval, series }),
        (cron(), series()).prop_map(|(cron, series)| Schedule::Cron { cron, series }),
        (span(), option::of(1..9_999u64), any::<bool>()).prop_map(|(within, max, on_return)| {
            let postpone_max = max.map(Duration::from_secs);
            Schedule::Watch { within, postpone_max, on_return }
        }),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    let http = (0..5usize, vec(("x-[a-z]{1,8}", "[ -~]{0,20}"), 0..4)).prop_map(|(method, all)| {
        let url = "https://example.org/hook?a=b";
        let headers = all.into_iter().map(|(name, value)| (name, value.trim().to_owned()));
        Target::Http(HttpTarget::new(url, Method::ALL[method], headers.collect()).unwrap())
    });
    let queue = "[a-z][a-z0-9._-]{0,20}".prop_map(|name| Target::Queue(Queue::new(&name).unwrap()));
    prop_oneof![queue, http]
}

fn payload() -> impl Strategy<Value = Payload> {
    let bytes = || vec(any::<u8>(), 0..300).prop_map(Bytes::from);
    prop_oneof![
        Just(Payload::Empty),
        bytes().prop_map(Payload::Json),
        (bytes(), "[a-z/]{0,20}").prop_map(|(bytes, content_type)| Payload::Binary {
            bytes,
            content_type: content_type.into()
        }),
    ]
}

fn series() -> impl Strategy<Value = Arc<Series>> {
    let times = (option::of(instant()), option::of(instant()));
    let series = (times, option::of(1..=u32::MAX), 0..3usize, 0..3usize, span());
    let series = series.prop_map(|((starts_at, ends_at), count, misfire, overlap, jitter)| {
        let misfire = [Misfire::FireOnce, Misfire::FireAll, Misfire::Skip][misfire];
        let overlap = [Overlap::Allow, Overlap::Skip, Overlap::QueueOne][overlap];
        Series { starts_at, ends_at, count, misfire, overlap, jitter }.into()
    });
    prop_oneof![Just(Arc::default()), series]
}

fn cron() -> impl Strategy<Value = Arc<Cron>> {
    let expressions = ["0 9 * * MON-FRI", "@daily", "*/5 * * * * *", "0 0 12 L * ? 2030-2040"];
    let zones = ["UTC", "Europe/Berlin", "America/New_York"];
    let gap = option::of(prop_oneof![Just(Gap::After), Just(Gap::Skip)]);
    let overlap = option::of(prop_oneof![Just(Twice::Once), Just(Twice::Both)]);
    (0..expressions.len(), 0..zones.len(), gap, overlap).prop_map(
        move |(expression, zone, gap, overlap)| {
            let zone = Zone::new(zones[zone]).unwrap();
            Cron::new(expressions[expression], zone, Dst { gap, overlap }).unwrap().into()
        },
    )
}

fn occasion() -> impl Strategy<Value = Occasion> {
    prop_oneof![Just(Occasion::Due), Just(Occasion::Manual), Just(Occasion::Return)]
}

fn overlapping() -> impl Strategy<Value = Vec<OverlappingFire>> {
    let overlapping = (instant(), instant(), attempts(), occasion()).prop_map(
        |(nominal_at, fire_at, attempts, occasion)| OverlappingFire {
            nominal_at,
            fire_at,
            attempts,
            occasion,
        },
    );
    vec(overlapping, 0..3)
}

fn retry() -> impl Strategy<Value = RetryPolicy> {
    let backoff = prop_oneof![
        span().prop_map(Backoff::Fixed),
        (span(), any::<u32>(), span()).prop_map(|(first, factor_thousandths, max)| {
            Backoff::Exponential { first, factor_thousandths, max }
        }),
        vec(span(), 0..5).prop_map(Backoff::List),
    ];
    let policy =
        (any::<u16>(), backoff, 0..=1000u16).prop_map(|(attempts_max, backoff, jitter)| {
            RetryPolicy { attempts_max, backoff, jitter: Jitter::from_thousandths(jitter).unwrap() }
        });
    prop_oneof![Just(RetryPolicy::default()), policy]
}

fn attempts() -> impl Strategy<Value = Vec<AttemptRecord>> {
    let reason = || "[ -~äΩ]{0,40}".prop_map(|text| Reason::new(&text));
    let outcome = prop_oneof![
        Just(Outcome::Acked),
        Just(Outcome::Expired),
        reason().prop_map(|reason| Outcome::Refused { reason }),
        (reason(), option::of(span()))
            .prop_map(|(reason, retry_in)| Outcome::Failed { reason, retry_in }),
    ];
    let body = vec(any::<u8>(), 0..40);
    let answer = (option::of(0..=u16::MAX), "[a-z/]{0,20}", body, any::<bool>());
    let answer = answer.prop_map(|(status, content_type, body, truncated)| {
        Box::new(Answer::from_stored(status, &content_type, &body, truncated))
    });
    let attempt = (instant(), instant(), outcome, option::of(answer));
    vec(attempt, 0..4).prop_map(|attempts| {
        let mut task = plain_task();
        for (fired_at, ended_at, outcome, answer) in attempts {
            task.add_attempt(fired_at, ended_at, AttemptResult { outcome, answer });
        }
        task.attempts
    })
}

/// A redrive, and the number of the first attempt that is kept.
fn redrive() -> impl Strategy<Value = (Redrive, u32)> {
    let origin = (task_id(), instant(), option::of("[ -~äΩ]{1,30}"));
    let origin = origin.prop_map(|(task, nominal_at, key)| Origin {
        fire_id: FireId { task, nominal_at },
        key: key.map(|key| TaskKey::new(&key).unwrap()),
    });
    (instant(), any::<u32>(), option::of(origin), 1..1_000_000u32).prop_map(
        |(at, attempts_before, origin, first)| (Redrive { at, attempts_before, origin }, first),
    )
}

fn plain_task() -> Task {
    let id = TaskId::floor(Timestamp::from_millis(7000));
    let schedule = Schedule::Once(Due::In(Duration::from_secs(7)));
    let target = Target::Queue(Queue::new("orders").unwrap());
    let new_task = NewTask::new(Namespace::new("shop").unwrap(), schedule, target);
    Task::new(id, new_task.into(), Timestamp::EPOCH, Version::FIRST)
}

fn new_task() -> impl Strategy<Value = NewTask> {
    let names = ("[a-z][a-z0-9]{0,10}", option::of("[ -~äΩ]{1,30}"));
    let labels = btree_map("[a-z]{1,8}", "[ -~]{0,10}", 0..3);
    let rest = (target(), payload(), retry(), span(), option::of(span()), labels, 0..3u8);
    let callbacks = (option::of(target()), option::of(target()))
        .prop_map(|(on_done, on_dead)| Callbacks::new(on_done, on_dead));
    let extras = (callbacks, option::of((task_id(), instant())));
    (names, schedule(), rest, extras).prop_map(|((namespace, key), schedule, rest, extras)| {
        let (callbacks, callback_of) = extras;
        let (target, payload, retry, timeout, expires_after, labels, guarantee) = rest;
        let labels: BTreeMap<String, String> = labels;
        NewTask {
            namespace: Namespace::new(&namespace).unwrap(),
            key: key.map(|key| TaskKey::new(&key).unwrap()),
            schedule,
            target,
            payload,
            guarantee: [Guarantee::AtMostOnce, Guarantee::AtLeastOnce, Guarantee::ExactlyOnce]
                [usize::from(guarantee)],
            retry,
            timeout,
            expires_after,
            labels: Labels::new(labels).unwrap(),
            callbacks,
            callback_of: callback_of.map(|(task, nominal_at)| FireId { task, nominal_at }),
        }
    })
}

fn any_task() -> impl Strategy<Value = Task> {
    let times = (instant(), instant(), instant(), option::of(instant()));
    let fires = prop_oneof![Just(1), any::<u32>()];
    let times_set = (option::of(instant()), option::of(instant()), option::of(instant()));
    let progress = (times_set, occasion(), fires, overlapping(), option::of(redrive()));
    let states = [TaskState::Scheduled, TaskState::Paused, TaskState::Done, TaskState::Dead];
    let state = (any::<u64>(), attempts(), 0..states.len());
    (task_id(), new_task(), times, state, progress).prop_map(
        move |(id, definition, times, (version, mut attempts, state), progress)| {
            let (created_at, fire_at, nominal_at, updated_at) = times;
            let ((resumes_at, given_at, armed_at), occasion, fires, overlapping, redrive) =
                progress;
            if let Some((_, first)) = redrive {
                for (number, attempt) in (first..).zip(&mut attempts) {
                    attempt.number = AttemptNo::new(number);
                }
            }
            Task {
                id,
                definition: Arc::new(definition),
                created_at,
                updated_at: updated_at.unwrap_or(created_at),
                state: states[state],
                fire_at,
                nominal_at,
                version: Version::new(version),
                attempts,
                resumes_at,
                occasion,
                fires,
                given_at,
                armed_at,
                overlapping,
                redrive: redrive.map(|(redrive, _)| Box::new(redrive)),
            }
        },
    )
}

#[test]
fn a_manually_fired_task_of_format_2_is_still_read() {
    let task = plain_task();
    let mut bytes = Vec::new();
    put_task(&mut bytes, &task);
    let format = 16 + 2;
    assert_eq!(bytes[format], 1, "the id and two bytes of time come before it");
    bytes[format] = 2;
    put_varint(&mut bytes, 9000);
    let resumes_at = Some(Timestamp::from_millis(9000));
    let want = Task { resumes_at, occasion: Occasion::Manual, ..task };
    assert_eq!(read_task(&bytes, &Interner::default()), Ok(want));
}

/// A rule that became stricter must not make stored tasks unreadable.
#[test]
fn a_stored_cron_task_that_would_be_refused_today_is_still_read_and_has_no_fire_time() {
    let target = Target::Queue(Queue::new("orders").unwrap());
    let id = TaskId::floor(Timestamp::from_millis(7000));
    for (accepted, zone, stored, stored_zone) in [
        ("0 0 30 1 */2", "Etc/UTC", "0 0 30 2 */2", "Etc/UTC"),
        ("0 0 0 30 1 ? 2030", "Etc/UTC", "0 0 0 30 2 ? 2030", "Etc/UTC"),
        ("0 0 31 1 *", "Etc/UTC", "0 0 31 2 *", "Factory"),
    ] {
        let cron = Cron::new(accepted, Zone::new(zone).unwrap(), Dst::default()).unwrap();
        let schedule = Schedule::Cron { cron: cron.into(), series: Arc::default() };
        let new_task = NewTask::new(Namespace::new("shop").unwrap(), schedule, target.clone());
        let task = Task::new(id, new_task.into(), Timestamp::EPOCH, Version::FIRST);
        let mut bytes = Vec::new();
        put_task(&mut bytes, &task);
        for (old, new) in [(accepted, stored), (zone, stored_zone)] {
            assert_eq!(old.len(), new.len());
            let at = bytes.windows(old.len()).position(|part| part == old.as_bytes()).unwrap();
            bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
        }
        let read = read_task(&bytes, &Interner::default()).unwrap();
        let Schedule::Cron { cron, .. } = &read.definition.schedule else { panic!("{read:?}") };
        assert_eq!((cron.expression(), cron.zone().name()), (stored, stored_zone));
        assert_eq!(read.definition.schedule.first_at(Timestamp::EPOCH), None);
        assert_eq!(read.definition.schedule.next_at(read.fire_at), None);
        assert_eq!(read.fire_at, task.fire_at, "what was decided stays");
        let mut again = Vec::new();
        put_task(&mut again, &read);
        assert_eq!(again, bytes);
        assert!(
            Zone::new(stored_zone)
                .and_then(|zone| Cron::new(stored, zone, Dst::default()))
                .is_err()
        );
    }
}

proptest! {
    #[test]
    fn encoded_values_decode_to_the_same_values(
        task in any_task(), ended_at in instant(), end in 0..8u8,
    ) {
        let interner = Interner::default();
        let mut bytes = Vec::new();
        put_task(&mut bytes, &task);
        prop_assert_eq!(&read_task(&bytes, &interner).unwrap(), &task);

        let mut body = Vec::new();
        put_body(&mut body, &task);
        let summary = read_summary(task.id, task.fire_at, &body).unwrap();
        prop_assert_eq!(summary.head, Head::of(&task));
        prop_assert_eq!(summary.key, task.definition.key.as_ref().map(TaskKey::as_str));
        prop_assert_eq!(read_named(&body).unwrap(), task.definition.key.is_some());
        prop_assert_eq!(read_state(&body).unwrap(), task.state);

        let mut bytes = Vec::new();
        put_head(&mut bytes, &Head::of(&task));
        prop_assert_eq!(read_head(&bytes).unwrap(), Head::of(&task));

        let reasons =
            [DeadReason::Exhausted, DeadReason::Refused, DeadReason::Expired, DeadReason::Unknown];
        let end = match end {
            0 => FireEnd::Done,
            1 => FireEnd::Cancelled,
            2 => FireEnd::Replaced,
            7 => FireEnd::Skipped(Skipped { fires: 7, until: ended_at, why: SkipReason::Overlap }),
            other => FireEnd::Dead(reasons[usize::from(other) - 3]),
        };
        let record = FireRecord::of(&task, end, ended_at);
        let mut bytes = Vec::new();
        put_record(&mut bytes, &record);
        prop_assert_eq!(&read_record(&bytes, &interner).unwrap(), &record);
        prop_assert_eq!(read_record_id(&bytes).unwrap(), (record.fire_id, ended_at));
        let name = read_record_name(&bytes).unwrap();
        prop_assert_eq!((name.fire_id, name.task_id), (record.fire_id, record.task_id()));

        let letter = DeadLetter { task, died_at: ended_at, reason: DeadReason::Unknown };
        let mut bytes = Vec::new();
        put_letter(&mut bytes, &letter);
        prop_assert_eq!(&read_letter(&bytes, &interner).unwrap(), &letter);
    }

    #[test]
    fn new_tasks_decode_to_the_same_values_and_delays_stay_delays(
        new_task in new_task(), position in any::<prop::sample::Index>(), flip in 1..=255u8,
    ) {
        let interner = Interner::default();
        let mut bytes = Vec::new();
        put_new_task(&mut bytes, &new_task);
        prop_assert_eq!(&read_new_task(&bytes, &interner).unwrap(), &new_task);

        let position = position.index(bytes.len());
        prop_assert!(read_new_task(&bytes[..position], &interner).is_err());
        let mut longer = bytes.clone();
        longer.push(0);
        prop_assert!(read_new_task(&longer, &interner).is_err());
        bytes[position] ^= flip;
        read_anything(&bytes);
        bytes[0] = 9;
        prop_assert_eq!(read_new_task(&bytes, &interner), Err(CodecError::Format(9)));
    }

    #[test]
    fn decoding_never_panics(bytes in vec(any::<u8>(), 0..200)) {
        read_anything(&bytes);
        // With a known format, decoding gets further.
        for format in 1..=3 {
            read_anything(&[&[format], bytes.as_slice()].concat());
        }
    }

    #[test]
    fn a_truncated_task_is_refused_and_a_damaged_one_never_panics(
        task in any_task(), position in any::<prop::sample::Index>(), flip in 1..=255u8,
    ) {
        let interner = Interner::default();
        let mut bytes = Vec::new();
        put_task(&mut bytes, &task);
        let position = position.index(bytes.len());
        prop_assert!(read_task(&bytes[..position], &interner).is_err());
        bytes[position] ^= flip;
        read_anything(&bytes);
    }

    #[test]
    fn numbers_decode_to_the_same_values(value: u64, signed: i64) {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, value);
        put_signed(&mut bytes, signed);
        let mut reader = Reader::new(&bytes);
        prop_assert_eq!(reader.varint(), Ok(value));
        prop_assert_eq!(reader.signed(), Ok(signed));
        prop_assert_eq!(reader.end(), Ok(()));
    }
}

fn read_anything(bytes: &[u8]) {
    let interner = Interner::default();
    let id = TaskId::floor(Timestamp::EPOCH);
    let _ = read_task(bytes, &interner);
    let _ = read_new_task(bytes, &interner);
    let _ = read_body(id, Timestamp::EPOCH, bytes, &interner);
    let _ = read_summary(id, Timestamp::EPOCH, bytes);
    let _ = read_head(bytes);
    let _ = read_record(bytes, &interner);
    let _ = read_record_id(bytes);
    let _ = read_record_name(bytes);
    let _ = read_letter(bytes, &interner);
    let _ = (read_state(bytes), read_named(bytes));
}
