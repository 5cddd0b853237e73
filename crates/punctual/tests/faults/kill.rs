//! kill -9 and SIGTERM under load, with receivers of webhooks.
//!
//! Longer: `PUNCTUAL_KILL_ROUNDS=100 cargo test -p punctual --test faults -- kill::`.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::Duration;

use punctual_test_support::{
    BrokerClient, BrokerProcess, ReceivedDelivery, RecordingReceiver, now_millis, pause,
};
use serde_json::json;

use crate::load::{CALLERS, load};

/// A task and the answers about it.
#[derive(Debug, Clone)]
struct KillTask {
    key: String,
    due_millis: u64,
    at_most_once: bool,
    /// `None` if there was no answer.
    acknowledged: Option<bool>,
    /// The cancel was acknowledged.
    cancelled: bool,
    /// The cancel had no answer.
    maybe_cancelled: bool,
    replaced: Option<Replacement>,
}

/// The same key with a later time.
#[derive(Debug, Clone)]
struct Replacement {
    due_millis: u64,
    /// When the PUT was answered; `None` if it was not.
    answered_millis: Option<u128>,
}

/// How far the clock of a broker may differ from the machine's, which it follows slowly.
const CLOCK_ERROR_MILLIS: u128 = 20;

#[test]
fn a_broker_killed_under_load_loses_nothing_and_delivers_nothing_early_or_cancelled() {
    let rounds = std::env::var("PUNCTUAL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(4);
    let (dir, receiver) = (tempfile::tempdir().unwrap(), RecordingReceiver::start());
    let (mut tasks, mut kills) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let (process, client) = BrokerProcess::start(dir.path());
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (client, url) = (client.clone(), receiver.url.clone());
                thread::spawn(move || schedule_until_killed(&client, &url, round, number))
            })
            .collect();
        pause(Duration::from_millis(400 + round * 7919 % 800));
        process.kill();
        kills.push(now_millis());
        tasks.extend(callers.into_iter().flat_map(|caller| caller.join().unwrap()));
    }
    let (process, _) = BrokerProcess::start(dir.path());
    // The last task is due within two seconds after the last kill, so three quiet seconds mean that
    // everything has fired.
    receiver.settle_down(Duration::from_secs(3));
    check(&tasks, &kills, &receiver);
    process.kill();
}

/// Schedules tasks that are due within two seconds, and cancels some, until there is no answer.
fn schedule_until_killed(
    client: &BrokerClient,
    url: &str,
    round: u64,
    number: u64,
) -> Vec<KillTask> {
    let mut all = Vec::new();
    for n in 0..u64::MAX {
        let key = format!("k{round}-{number}-{n}");
        let due_millis = u64::try_from(now_millis()).unwrap() + (n * 613 + number * 97) % 2000;
        let at_most_once = n % 3 == 0;
        let guarantee = if at_most_once { "at_most_once" } else { "at_least_once" };
        let path = if n % 4 == 1 { "slow" } else { "now" };
        let body = json!({
            "at": due_millis,
            "guarantee": guarantee,
            "target": {"http": {"url": format!("{url}/{path}/{key}")}},
            "retry": {"attempts_max": 20, "backoff": {"fixed": "100ms"}, "jitter": 0},
        });
        let acknowledged = client.try_put(&key, &body);
        let mut task = KillTask {
            key,
            due_millis,
            at_most_once,
            acknowledged,
            cancelled: false,
            maybe_cancelled: false,
            replaced: None,
        };
        if acknowledged == Some(true) && n % 7 == 2 {
            match client.request_task("DELETE", &task.key, "") {
                Some((200, answer)) => task.cancelled = answer["result"] == "cancelled",
                Some(_) => {}
                None => task.maybe_cancelled = true,
            }
        }
        if acknowledged == Some(true) && n % 7 == 4 {
            let mut body = body;
            let due_millis = due_millis + 500;
            body["at"] = due_millis.into();
            let answered = client.try_put(&task.key, &body).map(|_| now_millis());
            task.replaced = Some(Replacement { due_millis, answered_millis: answered });
        }
        let unanswered = |it: &Replacement| it.answered_millis.is_none();
        let ended = acknowledged.is_none()
            || task.maybe_cancelled
            || task.replaced.as_ref().is_some_and(unanswered);
        all.push(task);
        if ended {
            break;
        }
    }
    all
}

fn check(tasks: &[KillTask], kills: &[u128], receiver: &RecordingReceiver) {
    let deliveries = receiver.deliveries();
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for task in tasks {
        let got = deliveries.get(&task.key).map_or([].as_slice(), Vec::as_slice);
        for delivery in got {
            assert!(delivery.at_millis >= task.due_millis.into(), "early: {task:?} {delivery:?}");
        }
        if let Some(replacement) = &task.replaced {
            check_replaced(task, replacement, got);
            *counts.entry("replaced").or_default() += 1;
            continue;
        }
        let ids: HashSet<&str> = got.iter().map(|delivery| delivery.fire_id.as_str()).collect();
        assert!(ids.len() <= 1, "several ids of one fire: {task:?} {got:?}");
        assert_ne!(task.acknowledged, Some(false), "refused: {task:?}");
        let mut count = |what| *counts.entry(what).or_default() += 1;
        if task.cancelled {
            assert!(got.is_empty(), "cancelled and received: {task:?} {got:?}");
            count("cancelled, never received");
            continue;
        }
        if task.at_most_once {
            assert!(got.len() <= 1, "at most once, and twice: {task:?} {got:?}");
        }
        if task.acknowledged != Some(true) || task.maybe_cancelled {
            count("unanswered");
        } else if task.at_most_once && got.is_empty() {
            // A kill came after the claim. The outcome is not known, and it is not sent again.
            let last_kill = kills.last().copied().unwrap_or_default();
            assert!(u128::from(task.due_millis) <= last_kill, "never sent: {task:?}");
            count("at most once, unknown");
        } else if task.at_most_once {
            count("at most once, received once");
        } else {
            assert!(!got.is_empty(), "acknowledged and never received: {task:?}");
            count(if got.len() == 1 { "at least once, once" } else { "at least once, again" });
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable();
    println!("{} kills, {} tasks: {counts:?}", kills.len(), tasks.len());
    let deliveries = counts.iter().any(|(what, _)| *what == "at least once, once");
    assert!(deliveries, "nothing was delivered: {counts:?}");
}

/// The old version may be received later than the PUT was answered, but it left the broker before.
fn check_replaced(task: &KillTask, replacement: &Replacement, got: &[ReceivedDelivery]) {
    let (new, old): (Vec<_>, Vec<_>) =
        got.iter().partition(|delivery| delivery.fire_at_millis == replacement.due_millis);
    for versions in [&new, &old] {
        assert!(!task.at_most_once || versions.len() <= 1, "at most once: {task:?} {got:?}");
    }
    let Some(answered_millis) = replacement.answered_millis else { return };
    for delivery in old {
        let left = u128::from(delivery.sent_at_millis);
        assert!(left <= answered_millis + CLOCK_ERROR_MILLIS, "an old version: {task:?} {got:?}");
    }
    assert!(task.at_most_once || !new.is_empty(), "replaced and never received: {task:?} {got:?}");
}

#[test]
fn a_broker_stopped_under_load_loses_nothing_and_has_nothing_to_replay() {
    let dir = tempfile::tempdir().unwrap();
    let (process, client) = BrokerProcess::start(dir.path());
    let acknowledged = load(&client, "a", 200, || process.signal("-TERM"));
    let (status, log) = process.end();
    assert!(status.success(), "{status}\n{log}");
    let (process, client) = BrokerProcess::start(dir.path());
    let opened = process.logged("store open").expect("the log has how the store opened");
    assert_eq!((&opened["replayed"], &opened["clean"]), (&json!(0), &json!(true)), "{opened}");
    client.assert_has(acknowledged.iter().map(|acknowledged| &acknowledged.key));
    println!("{} acknowledged before and during the stop, all there", acknowledged.len());
    process.kill();
}
