//! The commands that speak to a broker: the real binary against the real binary.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod field;

use std::process::Command;

use field::{Broker, Receiver, eventually};
use serde_json::{Value, json};

/// Runs a command. Out: whether it went well, what it printed, and what it complained of.
fn punctual(broker: &Broker, args: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(args)
        .env("PUNCTUAL_BROKER", format!("http://{}", broker.address))
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// Runs a command with `--json` that should go well.
fn json_of(broker: &Broker, args: &[&str]) -> Value {
    let (fine, said, complaint) = punctual(broker, &[args, &["--json"]].concat());
    assert!(fine, "{args:?}: {complaint}");
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("{args:?} printed {said}"))
}

#[test]
fn a_task_is_scheduled_shown_moved_listed_and_cancelled() {
    let broker = Broker::start(&[]);
    let made = json_of(
        &broker,
        &[
            "schedule",
            "shop",
            "order/1",
            "--in",
            "1h",
            "--to",
            "http://127.0.0.1:9/x",
            "--header",
            "x-a:b",
            "--payload",
            r#"{"order": 1}"#,
            "--attempts",
            "3",
            "--label",
            "zone:eu",
            "--if-absent",
        ],
    );
    assert_eq!((&made["key"], &made["payload"]), (&json!("order/1"), &json!({"order": 1})));
    assert_eq!(made["retry"]["attempts_max"], 3);
    assert_eq!(made["target"]["http"]["headers"], json!({"x-a": "b"}));
    let nameless = json_of(&broker, &["schedule", "shop", "--at", "2051222400000", "--queue", "q"]);
    assert_eq!(nameless["fire_at"], "2035-01-01T00:00:00.000Z");
    assert_eq!(json_of(&broker, &["show", "shop", "order/1"]), made);
    let moved = json_of(&broker, &["touch", "shop", "order/1", "--in", "2h"]);
    assert_eq!(moved["version"], 2);
    assert_eq!(json_of(&broker, &["pause", "shop", "order/1"])["state"], "paused");
    assert_eq!(json_of(&broker, &["resume", "shop", "order/1"])["state"], "scheduled");
    let list = json_of(&broker, &["list", "shop", "--label", "zone:eu"]);
    assert_eq!(list["tasks"].as_array().unwrap().len(), 1);
    let (fine, table, _) = punctual(&broker, &["list", "shop", "--limit", "1"]);
    assert!(fine && table.contains("fire_at") && table.contains("order/1"), "{table}");
    assert!(table.contains("--cursor"), "there is one more: {table}");
    let (fine, table, _) = punctual(&broker, &["show", "shop", "order/1"]);
    assert!(
        fine && table.lines().any(|line| line.contains("state") && line.contains("scheduled")),
        "{table}"
    );
    let steps = json_of(&broker, &["forecast", "shop", "--for", "4h", "--step", "2h"]);
    assert_eq!(steps["steps"].as_array().unwrap().len(), 2);
    let stats = json_of(&broker, &["stats", "shop"]);
    assert_eq!((&stats["scheduled"], &stats["accepted"]), (&json!(2), &json!(2)));
    assert_eq!(json_of(&broker, &["cancel", "shop", "order/1"]), json!({"result": "cancelled"}));
    let many = json_of(&broker, &["cancel", "shop", "a", "b"]);
    assert_eq!(many["results"][1], json!({"key": "b", "result": "not_found"}));
    assert_eq!(json_of(&broker, &["topology"])["leader"], broker.address.to_string());
    let (fine, table, _) = punctual(&broker, &["topology"]);
    assert!(fine && table.contains("leader"), "{table}");
}

#[test]
fn what_the_broker_refuses_is_one_sentence_and_exit_code_1() {
    let broker = Broker::start(&[]);
    for (args, sentence) in [
        (vec!["show", "shop", "none"], "task \"none\" not found in namespace \"shop\""),
        (vec!["schedule", "shop", "--in", "soon", "--queue", "q"], "must be a duration"),
        (vec!["schedule", "shop", "--cron", "* * * *", "--queue", "q"], "cron: "),
        (vec!["schedule", "shop", "--in", "1h", "--count", "2", "--queue", "q"], "goes with"),
        (vec!["preview", "* 25 * * *"], "cron: "),
        (vec!["preview", "@daily", "--timezone", "Europe/Berlni"], "Europe/Berlin"),
        (vec!["preview", "@daily", "--count", "101"], "from 1 to 100"),
        (vec!["list", "shop", "--state", "asleep"], "state must be"),
        (vec!["dead", "delete", "shop", "x"], "must be a fire id"),
        (vec!["stats", "sh op"], "letters, digits"),
        (
            vec!["stats", "shop", "--broker", "http://127.0.0.1:9"],
            "no answer from http://127.0.0.1:9",
        ),
        (vec!["schedule", "shop", "--in", "1h", "--queue", "q", "--payload", "{"], "must be JSON"),
    ] {
        let (fine, said, complaint) = punctual(&broker, &args);
        assert!(!fine && said.is_empty(), "{args:?}: {said}");
        assert!(complaint.contains(sentence), "{args:?}: {complaint}");
        assert!(!complaint.contains("urn:"), "{args:?}: {complaint}");
    }
}

/// A script that reads JSON reads it, too, when something goes wrong.
#[test]
fn with_json_a_failure_is_one_object_and_the_exit_code_is_the_same() {
    let broker = Broker::start(&[]);
    let task = ["schedule", "shop", "a", "--in", "1h", "--queue", "q"];
    let made = json_of(&broker, &task);
    let none = json!({"type": "urn:punctual:task-not-found", "title": "Task not found",
        "status": 404, "detail": "task \"none\" not found in namespace \"shop\""});
    let of_field = |field: &str, detail: &str| {
        json!({"type": "urn:punctual:invalid-request", "title": "Invalid request", "status": 400,
            "detail": detail, "field": field})
    };
    let states = "state must be scheduled, firing, paused, done or dead";
    let exists = json!({"type": "urn:punctual:exists", "title": "Task exists", "status": 409,
        "detail": "task \"a\" in namespace \"shop\" already exists", "existing": made});
    let letter = format!("{}-0000000000000", made["id"].as_str().unwrap());
    let alone = |detail: &str| json!({ "detail": detail });
    for (args, error) in [
        (vec!["show", "shop", "none"], none.clone()),
        (vec!["list", "shop", "--state", "asleep"], of_field("state", states)),
        ([&task[..], &["--if-absent"]].concat(), exists),
        (vec!["listen", "sh op", "q"], Value::Null),
        (vec!["dead", "delete", "shop", &letter], Value::Null),
        // What never reached a broker has no more than a sentence.
        (vec!["preview", "@daily", "--count", "x"], alone("count must be a number from 1 to 100")),
        (
            [&task[..], &["--label", "a:1", "--label", "a:2"]].concat(),
            alone("--label a is given twice"),
        ),
        (vec!["stats", "shop", "--broker", "http://127.0.0.1:9"], Value::Null),
        (vec!["store", "check", "/nowhere"], Value::Null),
    ] {
        let args = [&args[..], &["--json"]].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args(&args)
            .env("PUNCTUAL_BROKER", format!("http://{}", broker.address))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout), (Some(1), vec![]), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        let object: Value = serde_json::from_str(&said).unwrap();
        assert!(object["error"]["detail"].is_string(), "{args:?}: {said}");
        if !error.is_null() {
            assert_eq!(object, json!({ "error": error }), "{args:?}");
        }
    }
}

#[test]
fn schedules_are_said_in_words() {
    let broker = Broker::start(&[]);
    let cron = [
        "schedule",
        "shop",
        "report",
        "--cron",
        "0 9 * * MON-FRI",
        "--timezone",
        "Europe/Berlin",
        "--dst-gap",
        "skip",
        "--dst-overlap",
        "both",
        "--starts-at",
        "2030-01-01T00:00:00Z",
        "--ends-at",
        "1924992000000",
        "--count",
        "5",
        "--misfire",
        "fire_all",
        "--overlap",
        "queue_one",
        "--jitter",
        "1m",
        "--queue",
        "q",
    ];
    let made = json_of(&broker, &cron);
    assert_eq!(made["dst"], json!({"gap": "skip", "overlap": "both"}));
    assert_eq!((&made["misfire"], &made["overlap"]), (&json!("fire_all"), &json!("queue_one")));
    assert_eq!((&made["count"], &made["jitter"]), (&json!(5), &json!("1m")));
    assert_eq!(made["ends_at"], "2031-01-01T00:00:00.000Z");
    json_of(&broker, &["schedule", "shop", "beat", "--every", "5m", "--queue", "q"]);
    let watch =
        ["schedule", "shop", "watch", "--within", "2d", "--postpone-max", "30d", "--on-return"];
    let made = json_of(&broker, &[&watch[..], &["--queue", "q"]].concat());
    assert_eq!((&made["postpone_max"], &made["on_return"]), (&json!("30d"), &json!(true)));
    let (_, table, _) = punctual(&broker, &["list", "shop"]);
    for words in ["cron 0 9 * * MON-FRI Europe/Berlin", "every 5m", "within 2d"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let (_, table, _) = punctual(&broker, &["show", "shop", "report"]);
    assert!(table.contains("cron 0 9 * * MON-FRI Europe/Berlin"), "{table}");
    let touched = json_of(&broker, &["touch", "shop", "watch", "--within", "1h"]);
    assert_eq!((&touched["version"], &touched["within"]), (&json!(2), &json!("2d")));
    let preview = ["preview", "30 2 * * *", "--timezone", "Europe/Berlin", "--count", "2"];
    let preview = [&preview[..], &["--from", "2027-03-27T12:00:00Z"]].concat();
    let (fine, table, complaint) = punctual(&broker, &preview);
    assert!(fine, "{complaint}");
    for words in ["2027-03-28T03:00:00+02:00", "02:30 does not exist", "time zone data 20"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let answer = json_of(&broker, &preview);
    assert_eq!(answer["fires"][1]["fire_at"], "2027-03-29T00:30:00.000Z");
    let beat = json_of(&broker, &["schedule", "shop", "quick", "--every", "100ms", "--queue", "z"]);
    json_of(&broker, &["pause", "shop", "quick"]);
    eventually(|| {
        json_of(&broker, &["resume", "shop", "quick"]);
        json_of(&broker, &["pause", "shop", "quick"]);
        let (_, table, _) = punctual(&broker, &["history", "shop", beat["id"].as_str().unwrap()]);
        (table.contains("skipped") && table.contains("paused")).then_some(())
    });
    let (_, said, _) = punctual(&broker, &["--version"]);
    assert!(said.contains("time zone data 20"), "{said}");
}

#[test]
fn a_worker_on_the_terminal_prints_and_settles() {
    let broker = Broker::start(&[]);
    for n in ["1", "2", "3"] {
        json_of(&broker, &["schedule", "shop", n, "--in", "0s", "--queue", "mail", "--payload", n]);
    }
    let (fine, said, complaint) =
        punctual(&broker, &["listen", "shop", "mail", "--count", "3", "--json"]);
    assert!(fine, "{complaint}");
    let mut keys: Vec<String> = said
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["key"].as_str().unwrap().to_owned()
        })
        .collect();
    keys.sort();
    assert_eq!(keys, ["1", "2", "3"]);
    eventually(|| (json_of(&broker, &["stats", "shop"])["done"] == 3).then_some(()));
    let made = json_of(
        &broker,
        &["schedule", "shop", "x", "--in", "0s", "--queue", "mail", "--attempts", "1"],
    );
    let args = ["listen", "shop", "mail", "--count", "1", "--fail", "no paper"];
    let (fine, said, complaint) = punctual(&broker, &args);
    assert!(fine && said.contains("attempt 1"), "{said}{complaint}");
    let dead = eventually(|| {
        let page = json_of(&broker, &["dead", "list", "shop"]);
        page["dead"].get(0).cloned()
    });
    let id = made["id"].as_str().unwrap();
    let (fine, table, _) = punctual(&broker, &["history", "shop", id]);
    assert!(fine && table.contains("no paper") && table.contains("dead"), "{table}");
    let fire_id = dead["fire_id"].as_str().unwrap();
    assert_eq!(json_of(&broker, &["dead", "redrive", "shop", fire_id])["redriven"], 1);
    let (fine, _, complaint) = punctual(&broker, &["dead", "redrive", "shop", fire_id]);
    assert!(!fine && complaint.contains("could not go back"), "{complaint}");
}

#[test]
fn dead_letters_are_looked_after() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    let gone = format!("{}/410", receiver.url);
    for key in ["a", "b"] {
        json_of(&broker, &["schedule", "shop", key, "--in", "0s", "--to", &gone]);
    }
    let ids = eventually(|| {
        let page = json_of(&broker, &["dead", "list", "shop"]);
        let dead = page["dead"].as_array().unwrap();
        let ids = dead.iter().map(|letter| letter["fire_id"].as_str().unwrap().to_owned());
        Some(ids.collect::<Vec<_>>()).filter(|ids| ids.len() == 2)
    });
    let (fine, table, _) = punctual(&broker, &["dead", "list", "shop"]);
    assert!(fine && table.contains("refused") && table.contains(&ids[0]), "{table}");
    assert_eq!(
        json_of(&broker, &["dead", "delete", "shop", &ids[0]]),
        json!({"result": "deleted"})
    );
    let (fine, said, _) = punctual(&broker, &["dead", "redrive", "shop", "--all"]);
    assert!(fine && said.contains("redriven 1"), "{said}");
}

#[test]
fn a_task_is_fired_now() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    json_of(&broker, &["schedule", "shop", "a", "--in", "1h", "--to", &receiver.url]);
    json_of(&broker, &["fire", "shop", "a"]);
    assert_eq!(receiver.next().header("punctual-key"), "a");
}

#[test]
fn a_broker_with_tls_and_tokens_is_asked_by_who_knows_both() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let broker = Broker::start(&["--tls-cert", cert, "--tls-key", key, "--token", "shop=secret"]);
    let url = format!("https://localhost:{}", broker.address.port());
    let stats = |more: &[&str]| {
        punctual(&broker, &[&["stats", "shop", "--json", "--broker", &url], more].concat())
    };
    let (fine, said, complaint) = stats(&["--ca", cert, "--token", "secret"]);
    assert!(fine && said.contains("accepted"), "{complaint}");
    let (fine, _, complaint) = stats(&["--ca", cert, "--token", "guess"]);
    assert!(!fine && complaint.contains("a valid token is required"), "{complaint}");
    let (fine, _, complaint) = stats(&["--token", "secret"]);
    assert!(!fine && complaint.contains("no answer"), "{complaint}");
    assert!(!complaint.contains("secret"), "{complaint}");
    let (fine, _, complaint) = stats(&["--ca", key, "--token", "secret"]);
    assert!(!fine && complaint.contains("has no certificate"), "{complaint}");
}
