//! kill -9 and SIGTERM under load, with receivers of webhooks.
//!
//! Longer: `PUNCTUAL_KILL_ROUNDS=100 cargo test -p punctual --test faults -- kill::`.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::Duration;

use punctual_test_support::{BrokerClient, BrokerProcess, RecordingReceiver, now_millis, pause};
use serde_json::json;

use crate::load::{CALLERS, load};

/// What was asked for, and what was answered.
#[derive(Debug, Clone)]
struct KillTask {
    key: String,
    due_millis: u64,
    at_most_once: bool,
    /// `None`: there was no answer.
    acknowledged: Option<bool>,
    /// It was cancelled, and the answer said so.
    cancelled: bool,
    /// It may be cancelled: that call had no answer.
    cancelling: bool,
}

#[test]
fn a_broker_that_is_killed_under_load_loses_nothing_and_delivers_nothing_early_or_cancelled() {
    let rounds = std::env::var("PUNCTUAL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(4);
    let (dir, receiver) = (tempfile::tempdir().unwrap(), RecordingReceiver::start());
    let (mut asked, mut kills) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let (process, client) = BrokerProcess::start(dir.path());
        let asking: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (client, url) = (client.clone(), receiver.url.clone());
                thread::spawn(move || ask_until_killed(&client, &url, round, number))
            })
            .collect();
        pause(Duration::from_millis(400 + round * 7919 % 800));
        process.kill();
        kills.push(now_millis());
        asked.extend(asking.into_iter().flat_map(|asking| asking.join().unwrap()));
    }
    let (process, _) = BrokerProcess::start(dir.path());
    // The last task is due within two seconds of the last kill; silence for longer means that all is done.
    receiver.settle_down(Duration::from_secs(3));
    judge(&asked, &kills, &receiver);
    process.kill();
}

/// Files tasks that are due within two seconds, and cancels some, until there is no answer.
fn ask_until_killed(client: &BrokerClient, url: &str, round: u64, number: u64) -> Vec<KillTask> {
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
        let mut asked = KillTask {
            key,
            due_millis,
            at_most_once,
            acknowledged,
            cancelled: false,
            cancelling: false,
        };
        if acknowledged == Some(true) && n % 7 == 2 {
            match client.request_task("DELETE", &asked.key, "") {
                Some((200, answer)) => asked.cancelled = answer["result"] == "cancelled",
                Some(_) => {}
                None => asked.cancelling = true,
            }
        }
        let ended = acknowledged.is_none() || asked.cancelling;
        all.push(asked);
        if ended {
            break;
        }
    }
    all
}

fn judge(asked: &[KillTask], kills: &[u128], receiver: &RecordingReceiver) {
    let deliveries = receiver.deliveries();
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for asked in asked {
        let got = deliveries.get(&asked.key).map_or([].as_slice(), Vec::as_slice);
        for delivery in got {
            assert!(delivery.at_millis >= asked.due_millis.into(), "early: {asked:?} {delivery:?}");
        }
        let ids: HashSet<&str> = got.iter().map(|delivery| delivery.fire_id.as_str()).collect();
        assert!(ids.len() <= 1, "one fire has one id: {asked:?} {got:?}");
        assert_ne!(asked.acknowledged, Some(false), "refused: {asked:?}");
        let mut count = |what| *counts.entry(what).or_default() += 1;
        if asked.cancelled {
            assert!(got.is_empty(), "cancelled and received: {asked:?} {got:?}");
            count("cancelled, never received");
            continue;
        }
        if asked.at_most_once {
            assert!(got.len() <= 1, "at most once, and twice: {asked:?} {got:?}");
        }
        if asked.acknowledged != Some(true) || asked.cancelling {
            count("unanswered");
        } else if asked.at_most_once && got.is_empty() {
            // Claimed when a kill came, so what became of it is not known; it is not sent again.
            let last_kill = kills.last().copied().unwrap_or_default();
            assert!(u128::from(asked.due_millis) <= last_kill, "never sent: {asked:?}");
            count("at most once, unknown");
        } else if asked.at_most_once {
            count("at most once, received once");
        } else {
            assert!(!got.is_empty(), "acknowledged and never received: {asked:?}");
            count(if got.len() == 1 { "at least once, once" } else { "at least once, again" });
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable();
    println!("{} kills, {} tasks: {counts:?}", kills.len(), asked.len());
    let deliveries = counts.iter().any(|(what, _)| *what == "at least once, once");
    assert!(deliveries, "nothing happened: {counts:?}");
}

#[test]
fn a_broker_that_is_stopped_under_load_opens_with_nothing_to_replay_and_nothing_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (process, client) = BrokerProcess::start(dir.path());
    let acknowledged = load(&client, "a", 200, || process.signal("-TERM"));
    let (status, said) = process.end();
    assert!(status.success(), "{status}\n{said}");
    let (process, client) = BrokerProcess::start(dir.path());
    let opened = process.logged("store open").expect("it says how it opened");
    assert_eq!((&opened["replayed"], &opened["clean"]), (&json!(0), &json!(true)), "{opened}");
    client.assert_has(acknowledged.iter().map(|acknowledged| &acknowledged.key));
    println!("{} acknowledged before and during the stop, all there", acknowledged.len());
    process.kill();
}
