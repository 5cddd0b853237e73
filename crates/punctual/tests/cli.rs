//! The commands of the real binary against a real broker: tables, JSON, errors and help.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation ends the test")]

use punctual_test_support as field;

use std::process::{Command, Stdio};

use field::{FinishedCommand, TestBroker as Broker, WebhookReceiver as Receiver, eventually};
use serde_json::{Value, json};

/// Runs a command. Returns whether it succeeded, its standard output and its standard error.
fn punctual(broker: &Broker, args: &[&str]) -> (bool, String, String) {
    let command = FinishedCommand::run(broker.address, args);
    (command.success, command.printed, command.errors)
}

/// Runs a command with `--json` that must succeed.
fn json_of(broker: &Broker, args: &[&str]) -> Value {
    FinishedCommand::json(broker.address, args)
}

#[test]
fn a_task_is_scheduled_shown_touched_listed_and_cancelled() {
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
            "--attempts-max",
            "3",
            "--label",
            "zone:eu",
            "--create-only",
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
    let (success, table, _) = punctual(&broker, &["list", "shop", "--limit", "1"]);
    assert!(success && table.contains("fire_at") && table.contains("order/1"), "{table}");
    assert!(table.contains("--cursor"), "one more task follows: {table}");
    let (success, table, _) = punctual(&broker, &["show", "shop", "order/1"]);
    assert!(
        success && table.lines().any(|line| line.contains("state") && line.contains("scheduled")),
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
    let (success, table, _) = punctual(&broker, &["topology"]);
    assert!(success && table.contains("leader"), "{table}");
}

#[test]
fn a_refusal_is_one_sentence_and_exit_code_1() {
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
        let (success, printed, errors) = punctual(&broker, &args);
        assert!(!success && printed.is_empty(), "{args:?}: {printed}");
        assert!(errors.contains(sentence), "{args:?}: {errors}");
        assert!(!errors.contains("urn:"), "{args:?}: {errors}");
    }
}

/// A script that reads JSON can read errors too.
#[test]
fn with_json_an_error_is_one_object_and_the_exit_code_is_the_same() {
    let broker = Broker::start(&[]);
    let task = ["schedule", "shop", "a", "--in", "1h", "--queue", "q"];
    let made = json_of(&broker, &task);
    let unknown = "task \"none\" not found in namespace \"shop\": there was none, or its history \
                   is past its retention";
    let none = json!({"type": "urn:punctual:task-not-found", "title": "Task not found",
        "status": 404, "detail": unknown});
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
        ([&task[..], &["--create-only"]].concat(), exists),
        (vec!["listen", "sh op", "q"], Value::Null),
        (vec!["dead", "delete", "shop", &letter], Value::Null),
        // A preview is refused as a broker would refuse it.
        (
            vec!["preview", "@daily", "--count", "x"],
            of_field("count", "count must be a number from 1 to 100"),
        ),
        // An error that is not from a broker has only a detail.
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
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout), (Some(1), vec![]), "{args:?}: {printed}");
        assert_eq!(printed.lines().count(), 1, "{args:?}: {printed}");
        let object: Value = serde_json::from_str(&printed).unwrap();
        assert!(object["error"]["detail"].is_string(), "{args:?}: {printed}");
        if !error.is_null() {
            assert_eq!(object, json!({ "error": error }), "{args:?}");
        }
    }
}

#[test]
fn a_schedule_is_shown_as_text() {
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
    let (success, table, errors) = punctual(&broker, &preview);
    assert!(success, "{errors}");
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
    let (_, printed, _) = punctual(&broker, &["--version"]);
    assert!(printed.contains("time zone data 20"), "{printed}");
}

#[test]
fn listen_prints_deliveries_and_settles_them() {
    let broker = Broker::start(&[]);
    for n in ["1", "2", "3"] {
        json_of(&broker, &["schedule", "shop", n, "--in", "0s", "--queue", "mail", "--payload", n]);
    }
    let (success, printed, errors) =
        punctual(&broker, &["listen", "shop", "mail", "--count", "3", "--json"]);
    assert!(success, "{errors}");
    let mut keys: Vec<String> = printed
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
        &["schedule", "shop", "x", "--in", "0s", "--queue", "mail", "--attempts-max", "1"],
    );
    let args = ["listen", "shop", "mail", "--count", "1", "--fail", "no paper"];
    let (success, printed, errors) = punctual(&broker, &args);
    assert!(success && printed.contains("attempt 1"), "{printed}{errors}");
    let dead = eventually(|| {
        let page = json_of(&broker, &["dead", "list", "shop"]);
        page["dead"].get(0).cloned()
    });
    let id = made["id"].as_str().unwrap();
    let (success, table, _) = punctual(&broker, &["history", "shop", id]);
    assert!(success && table.contains("no paper") && table.contains("dead"), "{table}");
    let fire_id = dead["fire_id"].as_str().unwrap();
    assert_eq!(json_of(&broker, &["dead", "redrive", "shop", fire_id])["redriven"], 1);
    let (success, _, errors) = punctual(&broker, &["dead", "redrive", "shop", fire_id]);
    assert!(!success && errors.contains("could not be redriven"), "{errors}");
}

#[test]
fn dead_letters_are_listed_redriven_and_deleted() {
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
    let (success, table, _) = punctual(&broker, &["dead", "list", "shop"]);
    assert!(success && table.contains("refused") && table.contains(&ids[0]), "{table}");
    assert_eq!(
        json_of(&broker, &["dead", "delete", "shop", &ids[0]]),
        json!({"result": "deleted"})
    );
    let (success, printed, _) = punctual(&broker, &["dead", "redrive", "shop", "--all"]);
    assert!(success && printed.contains("redriven 1"), "{printed}");
}

#[test]
fn a_task_is_explained_and_queues_and_workers_are_listed() {
    let broker = Broker::start(&[]);
    json_of(&broker, &["schedule", "shop", "report", "--every", "1h", "--queue", "q"]);
    let explained = json_of(&broker, &["explain", "shop", "report"]);
    assert_eq!(explained["waiting_for"], "time");
    let (success, text, _) = punctual(&broker, &["explain", "shop", "report"]);
    assert!(success && text.starts_with("Task \"report\" waits for its time"), "{text}");
    assert!(text.contains("\nPartition 0, owned by 127.0.0.1:"), "{text}");
    assert!(text.contains("\nNext fires\n"), "{text}");
    let (success, _, errors) = punctual(&broker, &["explain", "shop", "none"]);
    assert!(!success && errors.contains("past its retention"), "{errors}");

    json_of(&broker, &["schedule", "shop", "due", "--in", "0s", "--queue", "q"]);
    let queues = eventually(|| {
        let queues = json_of(&broker, &["queues", "shop"]);
        (queues["queues"][0]["waiting"] == 1).then_some(queues)
    });
    assert_eq!(queues["queues"][0]["workers"], 0);
    let (_, table, _) = punctual(&broker, &["queues", "shop"]);
    assert!(table.lines().nth(1).unwrap().starts_with(" q"), "{table}");
    assert_eq!(json_of(&broker, &["workers", "shop"]), json!({"workers": []}));
    assert_eq!(punctual(&broker, &["workers", "shop"]).1, "none\n");
}

#[test]
fn fires_of_all_tasks_are_listed() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    for (key, path) in [("good", "/"), ("bad", "/500")] {
        let url = format!("{}{path}", receiver.url);
        let retry = ["--attempts-max", "1"];
        json_of(
            &broker,
            &[&["schedule", "shop", key, "--in", "0s", "--to", &url][..], &retry].concat(),
        );
    }
    let dead = eventually(|| {
        let dead = json_of(&broker, &["fires", "shop", "--end", "dead"]);
        (dead["fires"].as_array().unwrap().len() == 1).then_some(dead)
    });
    assert_eq!((&dead["fires"][0]["key"], &dead["next"]), (&json!("bad"), &Value::Null));
    let (success, table, _) = punctual(&broker, &["fires", "shop", "--limit", "1"]);
    assert!(success && table.contains("ended_at") && table.contains("--cursor f"), "{table}");
    let (success, _, errors) = punctual(&broker, &["fires", "shop", "--end", "late"]);
    assert!(!success && errors.contains("must be done, dead, cancelled"), "{errors}");
}

#[test]
fn a_task_is_fired_now() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    json_of(&broker, &["schedule", "shop", "a", "--in", "1h", "--to", &receiver.url]);
    json_of(&broker, &["fire", "shop", "a"]);
    assert_eq!(receiver.next().header("punctual-key"), "a");
}

#[test]
fn a_broker_with_tls_and_tokens_needs_the_authority_and_the_token() {
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
    let (success, printed, errors) = stats(&["--ca", cert, "--token", "secret"]);
    assert!(success && printed.contains("accepted"), "{errors}");
    let (success, _, errors) = stats(&["--ca", cert, "--token", "guess"]);
    assert!(!success && errors.contains("a valid token is required"), "{errors}");
    let (success, _, errors) = stats(&["--token", "secret"]);
    assert!(!success && errors.contains("no answer"), "{errors}");
    assert!(!errors.contains("secret"), "{errors}");
    let (success, _, errors) = stats(&["--ca", key, "--token", "secret"]);
    assert!(!success && errors.contains("has no certificate"), "{errors}");
}

#[test]
fn schedule_takes_everything_that_the_api_takes() {
    let broker = Broker::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("payload.json");
    // The order of members and the digits of numbers stay as they are in the file.
    let payload = r#"{"b": 1.50, "a": 12345678901234567890123}"#;
    std::fs::write(&file, payload).unwrap();
    let file = file.to_str().unwrap();
    let task = ["schedule", "shop", "a", "--in", "1h", "--queue", "q"];
    let made = json_of(
        &broker,
        &[
            &task[..],
            &["--payload-file", file, "--backoff", "exponential:1s,3,10m"],
            &["--attempts-max", "7", "--retry-jitter", "0.25", "--timeout", "20s"],
            &["--expires-after", "2h", "--guarantee", "at_most_once", "--label", "zone:eu"],
        ]
        .concat(),
    );
    let exponential = json!({"exponential": {"first": "1s", "factor": 3.0, "max": "10m"}});
    let retry = json!({"attempts_max": 7, "backoff": exponential, "jitter": 0.25});
    assert_eq!(made["retry"], retry);
    assert_eq!((&made["timeout"], &made["expires_after"]), (&json!("20s"), &json!("2h")));
    assert_eq!(
        (&made["guarantee"], &made["labels"]["zone"]),
        (&json!("at_most_once"), &json!("eu"))
    );
    let receiver = Receiver::start();
    let to_webhook = ["schedule", "shop", "b", "--in", "0s", "--to", &receiver.url];
    json_of(&broker, &[&to_webhook[..], &["--payload-file", file]].concat());
    assert_eq!(String::from_utf8(receiver.next().body).unwrap(), payload);
    for (backoff, json) in [
        ("fixed:3s", json!({"fixed": "3s"})),
        ("list:2m,10m,1h", json!({"list": ["2m", "10m", "1h"]})),
    ] {
        let made = json_of(&broker, &[&task[..], &["--backoff", backoff]].concat());
        assert_eq!(made["retry"]["backoff"], json);
    }
    let binary = ["--payload-base64", "AAEC", "--content-type", "image/x-dot"];
    let made = json_of(&broker, &[&task[..], &binary].concat());
    assert_eq!(
        (&made["payload_base64"], &made["content_type"]),
        (&json!("AAEC"), &json!("image/x-dot"))
    );
    let typed = ["--payload-file", file, "--content-type", "text/plain"];
    assert_eq!(json_of(&broker, &[&task[..], &typed].concat())["content_type"], "text/plain");

    let version = json_of(&broker, &["show", "shop", "a"])["version"].to_string();
    json_of(&broker, &[&task[..], &["--if-match", &version]].concat());
    let (success, _, errors) = punctual(&broker, &[&task[..], &["--if-match", &version]].concat());
    assert!(!success && errors.contains("version"), "{errors}");
    let (success, _, errors) = punctual(&broker, &[&task[..], &["--create-only"]].concat());
    assert!(!success && errors.contains("already exists"), "{errors}");
    for (key, idempotency_key) in [(&[][..], "x1"), (&["keyed"], "x2")] {
        let repeatable = [&["schedule", "shop"], key, &["--at", "2051222400000", "--queue", "q"]];
        let repeatable =
            [&repeatable.concat()[..], &["--idempotency-key", idempotency_key]].concat();
        let first = json_of(&broker, &repeatable);
        assert_eq!(json_of(&broker, &repeatable)["id"], first["id"]);
    }
    for (more, problem) in [
        (vec!["--payload", "1", "--payload-base64", "AAEC"], "cannot be used with"),
        (vec!["--payload-base64", "?"], "must be base64"),
        (vec!["--content-type", "a/b"], "--content-type needs"),
        (vec!["--backoff", "linear:1s"], "must be fixed:"),
        (vec!["--guarantee", "always"], "at_least_once"),
        (vec!["--payload-file", "/no/such/file"], "cannot read /no/such/file"),
    ] {
        let (success, _, errors) = punctual(&broker, &[&task[..], &more].concat());
        assert!(!success && errors.contains(problem), "{more:?}: {errors}");
    }
}

#[test]
fn a_payload_is_read_from_standard_input() {
    let broker = Broker::start(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["schedule", "shop", "a", "--in", "1h", "--queue", "q", "--payload-file", "-"])
        .env("PUNCTUAL_BROKER", format!("http://{}", broker.address))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"[1, 2]").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(json_of(&broker, &["show", "shop", "a"])["payload"], json!([1, 2]));
}

#[test]
fn flags_say_which_answers_are_a_success_and_where_ends_are_reported() {
    let broker = Broker::start(&[]);
    let flags = [
        "schedule",
        "shop",
        "a",
        "--in",
        "1h",
        "--to",
        "http://127.0.0.1:9/robot",
        "--success-status",
        "200,204",
        "--success-json",
        "/errcode=0",
        "--success-json",
        "/status=\"ok\"",
        "--refuse-status",
        "400,404",
        "--on-done",
        "queue:ends",
        "--on-dead",
        "http://127.0.0.1:9/dead",
    ];
    let http = json!({
        "url": "http://127.0.0.1:9/robot", "method": "POST",
        "success": {"statuses": [200, 204], "json": {"/errcode": 0, "/status": "ok"}},
        "refuse": {"statuses": [400, 404]},
    });
    let task = json_of(&broker, &flags);
    assert_eq!(task["target"]["http"], http, "{task}");
    assert_eq!(task["on_done"], json!({"queue": "ends"}));
    assert_eq!(task["on_dead"]["http"]["url"], "http://127.0.0.1:9/dead");
    let (_, shown, _) = punctual(&broker, &["show", "shop", "a"]);
    assert!(shown.contains("updated_at"), "{shown}");
    let dry = json_of(&broker, &[&flags[..], &["--paused", "--dry-run"]].concat());
    assert_eq!((&dry["task"]["paused"], &dry["task"]["on_done"]), (&json!(true), &task["on_done"]));
    for (more, problem) in [
        (&["--success-json", "errcode"][..], "must be POINTER=JSON"),
        (&["--success-json", "/a=ok"], "text needs quotes"),
        (&["--success-json", "/errcode=1"], "given twice"),
        (&["--success-status", "700", "--dry-run"], "success.statuses: must be from 200 to 599"),
        (&["--refuse-status", "700"], "must be from 200 to 599"),
    ] {
        let (success, _, errors) = punctual(&broker, &[&flags[..], more].concat());
        assert!(!success && errors.contains(problem), "{more:?}: {errors}");
    }
}

#[test]
fn the_history_shows_results_and_no_control_character() {
    let broker = Broker::start(&[]);
    let made = json_of(&broker, &["schedule", "shop", "--in", "0s", "--queue", "q"]);
    let result = "{\"sent\": \"\\u001b[2J\u{9b}31m\"}";
    let (success, _, errors) =
        punctual(&broker, &["listen", "shop", "q", "--count", "1", "--result", result]);
    assert!(success, "{errors}");
    let id = made["id"].as_str().unwrap();
    let fire = eventually(|| {
        let fires = json_of(&broker, &["history", "shop", id]);
        fires["fires"].get(0).filter(|fire| fire["end"] == "done").cloned()
    });
    assert_eq!(fire["result"], json!({"sent": "\u{1b}[2J\u{9b}31m"}));
    for args in [&["history", "shop", id][..], &["history", "shop", id, "--json"]] {
        let (_, printed, _) = punctual(&broker, args);
        assert!(printed.contains("sent"), "{printed}");
        assert!(!printed.contains(|c: char| c.is_control() && c != '\n'), "{printed:?}");
    }
}

#[test]
fn a_dry_run_shows_the_next_fires_and_schedules_nothing() {
    let broker = Broker::start(&[]);
    let queue = ["--queue", "q", "--dry-run"];
    let cron = ["schedule", "shop", "a", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin"];
    let cron = [&cron[..], &["--starts-at", "2035-03-24T12:00:00Z"], &queue].concat();
    let (success, table, errors) = punctual(&broker, &cron);
    assert!(success, "{errors}");
    for text in ["2035-03-25T01:00:00Z (in ", "02:30 does not exist", "nothing was scheduled"] {
        assert!(table.contains(text), "{text}: {table}");
    }
    assert_eq!(json_of(&broker, &cron)["fires"].as_array().unwrap().len(), 5);
    let every = ["schedule", "shop", "a", "--every", "1h", "--count", "2", "--payload", "[1]"];
    let answer = json_of(&broker, &[&every[..], &queue].concat());
    assert_eq!(answer["fires"].as_array().unwrap().len(), 2);
    assert_eq!((&answer["task"]["payload"], &answer["dry_run"]), (&json!([1]), &json!(true)));
    let watch = ["schedule", "shop", "a", "--within", "10m"];
    let (success, table, errors) = punctual(&broker, &[&watch[..], &queue].concat());
    assert!(success && table.contains("unless it is touched"), "{table}{errors}");
    let (_, table, _) =
        punctual(&broker, &[&["schedule", "shop", "--in", "15m"], &queue[..]].concat());
    assert!(table.contains("(in 14m 59s)") || table.contains("(in 15m)"), "{table}");
    for (when, problem) in [
        (&["--in", "soon"][..], "in: must be a duration"),
        (&["--in", "1h", "--count", "2"], "--count goes with"),
        (&["--cron", "* * * *"], "cron: "),
        (&["--cron", "@daily", "--timezone", "Europe/Berlni"], "Europe/Berlin"),
        (&["--every", "1ms"], "every: "),
        (&["--in", "1h", "--timeout", "0s"], "timeout: "),
        (&["--in", "1h", "--attempts-max", "0"], "--attempts-max must be from 1"),
        (&["--cron", "@daily", "--ends-at", "2001-01-01T00:00:00Z"], "no fire time"),
    ] {
        let args = [&["schedule", "shop", "a"], when, &queue].concat();
        let (success, printed, errors) = punctual(&broker, &args);
        assert!(!success && printed.is_empty(), "{when:?}: {printed}");
        assert!(errors.contains(problem), "{when:?}: {errors}");
    }
    assert_eq!(json_of(&broker, &["list", "shop"])["tasks"], json!([]));
}

#[test]
fn every_target_has_its_flags() {
    let broker = Broker::start(&[]);
    let schedule = ["schedule", "shop", "a", "--in", "1h"];
    for (flags, target) in [
        (
            &["--kafka", "events/orders.expired"][..],
            json!({"kafka": {"connection": "events", "topic": "orders.expired"}}),
        ),
        (
            &["--kafka", "events/o", "--record-key", "7", "--header", "a:b"],
            json!({"kafka": {"connection": "events", "topic": "o", "key": "7",
                             "headers": {"a": "b"}}}),
        ),
        (
            &["--amqp", "mq/orders", "--routing-key", "paid.eu", "--header", "a:b"],
            json!({"amqp": {"connection": "mq", "exchange": "orders", "routing_key": "paid.eu",
                            "headers": {"a": "b"}}}),
        ),
        (
            &["--amqp", "mq/", "--routing-key", "mails"],
            json!({"amqp": {"connection": "mq", "exchange": "", "routing_key": "mails"}}),
        ),
        (&["--nats", "n/a.b"], json!({"nats": {"connection": "n", "subject": "a.b"}})),
        (
            &["--mqtt", "m/devices/7/down", "--qos", "2", "--retain"],
            json!({"mqtt": {"connection": "m", "topic": "devices/7/down", "qos": 2,
                            "retain": true}}),
        ),
        (
            &["--redis-stream", "r/orders:{shop}", "--maxlen", "1000"],
            json!({"redis_stream": {"connection": "r", "stream": "orders:{shop}",
                                    "maxlen": 1000}}),
        ),
        (
            &["--grpc", "http://127.0.0.1:50051", "--method", "/shop.Orders/Cancel"],
            json!({"grpc": {"url": "http://127.0.0.1:50051", "method": "/shop.Orders/Cancel"}}),
        ),
    ] {
        let args = [&schedule[..], flags].concat();
        let dry = json_of(&broker, &[&args[..], &["--dry-run"]].concat());
        assert_eq!(dry["task"]["target"], target, "{flags:?}");
        // The broker reads what the command sends; it has no connection.
        let (success, printed, errors) = punctual(&broker, &args);
        assert_eq!(success, target["grpc"].is_object(), "{flags:?}: {printed}{errors}");
        assert!(success || errors.contains("has no connection"), "{flags:?}: {errors}");
    }
    for (flags, problem) in [
        (&["--kafka", "events"][..], "must begin with the name of a connection"),
        (&["--kafka", "events/a b"], "topic: must consist of"),
        (&["--kafka", "events/a", "--header", "punctual-x:y"], "set by Punctual"),
        (&["--mqtt", "m/a", "--qos", "0"], "qos: must be 1 or 2"),
        (&["--redis-stream", "r/a", "--maxlen", "0"], "maxlen: must be 1 to"),
        (&["--grpc", "http://a/path", "--method", "/a.B/C"], "url: must have no path"),
        (&["--grpc", "http://a", "--method", "POST"], "method: must be like"),
        (&["--grpc", "http://a"], "--method"),
        (&["--queue", "q", "--method", "GET"], "--to"),
        (&["--nats", "n/a", "--header", "a:b"], "--to"),
        (&["--nats", "n/a", "--routing-key", "k"], "--routing-key goes with --amqp"),
        (&["--queue", "q", "--retain"], "--retain goes with --mqtt"),
        (&["--queue", "q", "--param", "a=1"], "--param goes with --sql"),
        (&["--nats", "n/a", "--kafka", "k/a"], "cannot be used with"),
    ] {
        let args = [&schedule[..], flags, &["--dry-run"]].concat();
        let (success, printed, errors) = punctual(&broker, &args);
        assert!(!success && errors.contains(problem), "{flags:?}: {printed}{errors}");
    }
}

#[test]
fn an_error_has_no_backtrace_and_names_its_causes() {
    for variable in ["RUST_BACKTRACE", "RUST_LIB_BACKTRACE"] {
        let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args(["stats", "shop", "--broker", "http://127.0.0.1:9"])
            .env(variable, "full")
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(lines[0], "error: no answer from http://127.0.0.1:9");
        assert!(lines.len() > 1, "{errors}");
        assert!(lines[1..].iter().all(|line| line.starts_with("  caused by: ")), "{errors}");
    }
}

#[test]
fn times_are_relative_beside_absolute_and_a_pipe_gets_no_colours() {
    let broker = Broker::start(&[]);
    json_of(&broker, &["schedule", "shop", "a", "--in", "15m", "--queue", "q"]);
    for args in
        [&["show", "shop", "a"][..], &["list", "shop"], &["forecast", "shop"], &["topology"]]
    {
        let (success, table, errors) = punctual(&broker, args);
        assert!(success && !table.contains('\u{1b}'), "{table}{errors}");
    }
    for args in [&["show", "shop", "a"][..], &["list", "shop"]] {
        let (_, table, _) = punctual(&broker, args);
        assert!(table.contains("(in 14m 5"), "{table}");
    }
    let (_, table, _) = punctual(&broker, &["forecast", "shop", "--for", "2h", "--step", "1h"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("from") && lines[0].ends_with("fires"), "{table}");
    assert_eq!(lines.iter().filter(|line| line.contains('█')).count(), 1, "{table}");
    assert!(lines.last().unwrap().starts_with("total"), "{table}");
    let (_, table, _) = punctual(&broker, &["topology"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].contains("1 broker, 1 partition, leader "), "{table}");
    for head in ["broker", "map", "partitions", "ranges", "heartbeat"] {
        assert!(lines[1].contains(head), "{head}: {table}");
    }
    assert!(lines[2].starts_with('★'), "{table}");
}

#[test]
fn colours_are_used_on_a_terminal_unless_no_color_is_set() {
    // `script` runs a command on a terminal of its own.
    let broker = Broker::start(&[]);
    json_of(&broker, &["schedule", "shop", "a", "--in", "15m", "--queue", "q"]);
    let list = |no_color: &str| {
        let url = format!("http://{}", broker.address);
        let list = format!("{} list shop --broker {url}", env!("CARGO_BIN_EXE_punctual"));
        let output = Command::new("script")
            .args(["-qec", &list, "/dev/null"])
            .env("NO_COLOR", no_color)
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(list("").contains("\u{1b}[1m"), "{}", list(""));
    assert!(!list("1").contains('\u{1b}'), "{}", list("1"));
}

#[test]
fn completions_and_manual_pages_are_made_from_the_command_line() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_punctual")).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for (shell, text) in [
        ("bash", "complete -F _punctual"),
        ("zsh", "#compdef punctual"),
        ("fish", "complete -c punctual"),
    ] {
        let script = run(&["completions", shell]);
        assert!(script.contains(text) && script.contains("dry-run"), "{shell}: {script}");
    }
    assert!(run(&["man"]).contains(".TH punctual 1"));
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    run(&["man", pages.to_str().unwrap()]);
    for page in ["punctual.1", "punctual-schedule.1", "punctual-dead-redrive.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}: {text}");
    }
}

#[test]
fn alarms_are_put_listed_shown_tested_and_deleted() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    let put = ["alarms", "put", "shop", "errors", "--failures", "100", "--window", "1m"];
    let made = json_of(&broker, &[&put[..], &["--http", &receiver.url]].concat());
    assert_eq!(made["when"], json!({"failures": {"count": 100, "window": "1m"}}));
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let rule = json!({
        "when": {"overdue": {"over": "30s"}},
        "to": {"chat": {"kind": "wecom", "url": receiver.url}},
        "repeat_after": "1h",
    });
    std::fs::write(path("rule.json"), rule.to_string()).unwrap();
    std::fs::write(path("secret"), "SEC1\n").unwrap();
    let from_file =
        json_of(&broker, &["alarms", "put", "shop", "late", "--file", &path("rule.json")]);
    assert_eq!((&from_file["when"], &from_file["to"]), (&rule["when"], &rule["to"]));
    let secret = format!("@{}", path("secret"));
    let flags = ["--dead-letters-over", "5", "--dingtalk", &receiver.url, "--secret", &secret];
    let signed = json_of(&broker, &[&["alarms", "put", "shop", "dead"][..], &flags].concat());
    assert_eq!(signed["to"]["chat"]["kind"], "dingtalk");
    assert_eq!(json_of(&broker, &["alarms", "test", "shop", "errors"])["state"], "done");
    let (success, table, _) = punctual(&broker, &["alarms", "list", "shop"]);
    assert!(success && table.contains("failures >= 100 in 1m"), "{table}");
    assert!(table.contains("test: done") && table.contains("Z ("), "{table}");
    assert_eq!(json_of(&broker, &["alarms", "list", "shop"])["alarms"][2]["name"], "late");
    let (success, shown, _) = punctual(&broker, &["alarms", "show", "shop", "late"]);
    assert!(success && shown.contains("overdue > 30s") && shown.contains("wecom"), "{shown}");
    let deleted = json_of(&broker, &["alarms", "delete", "shop", "errors"]);
    assert_eq!(deleted, json!({"result": "deleted"}));
    let (success, _, errors) = punctual(&broker, &["alarms", "show", "shop", "errors"]);
    let sentence = "alarm \"errors\" not found in namespace \"shop\"";
    assert!(!success && errors.contains(sentence), "{errors}");
    let url = format!("{}/500", receiver.url);
    json_of(&broker, &[&put[..], &["--http", &url]].concat());
    let (success, shown, errors) = punctual(&broker, &["alarms", "test", "shop", "errors"]);
    assert!(!success && shown.contains("failed"), "{shown}");
    assert!(errors.contains("the receiver did not take the notice"), "{errors}");
}

/// A small run, to see that all rows with a Redis side work; figures come from a release build.
#[test]
fn bench_does_the_same_work_with_redis_beside() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(field::punctual_binary());
    command.args(["bench", "--quick", "--seconds", "1", "--rounds", "1", "--keys", "10000"]);
    command.args(["--only", "schedule,touch,cancel,drain", "--beside", "redis", "--json", "--dir"]);
    let output = command.arg(dir.path()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (rates, others): (Vec<&Value>, Vec<_>) =
        report["rows"].as_array().unwrap().iter().partition(|row| row["ratio"] != "–");
    assert_eq!(rates.len(), 21, "{report:#}");
    for row in rates {
        let figures = &row["figures"];
        let (ours, redis) = (&figures["rounds"], &figures["redis"]["rounds"]);
        for side in [ours, redis] {
            let rounds = side.as_array().unwrap();
            assert!(rounds.len() == 1 && rounds[0].as_u64() > Some(0), "{row:#}");
        }
        assert!(figures["connections"].as_u64() > Some(0), "{row:#}");
        assert!(figures["ratio"].as_f64() > Some(0.0), "{row:#}");
        let batches = row["what"].as_str().unwrap().contains("batches of");
        assert_eq!(figures["batches_in_flight_each"].is_u64(), batches, "{row:#}");
    }
    assert_eq!(others.len(), 1, "memory has no ratio");
    assert!(others[0]["figures"]["redis"]["resident_bytes"].as_u64() > Some(0), "{:#}", others[0]);
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "the data of both servers is removed");
}

/// A small run, to see that the workloads of databases work.
#[test]
fn bench_measures_brokers_outboxes_and_statements_on_databases_that_it_starts() {
    for store in ["postgres", "mysql"] {
        let dir = tempfile::tempdir().unwrap();
        // The servers run as other users.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).unwrap();
        let mut command = Command::new(field::punctual_binary());
        command.args(["bench", "--quick", "--only", "life,outbox,sql-target", "--store", store]);
        let output = command.args(["--json", "--dir"]).arg(dir.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = report["rows"].as_array().unwrap();
        let figure = |row: &Value, name: &str| row["figures"][name].as_f64().unwrap_or_default();
        let rates = rows.iter().filter(|row| figure(row, "per_second") > 0.0).count();
        assert_eq!((rows.len(), rates), (5, 4), "{report:#}");
        assert!(figure(&rows[0], "store_cpu_us") > 0.0, "{report:#}");
        assert_eq!(figure(&rows[2], "count"), 200.0, "{report:#}");
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 0, "the data of the servers is removed");
    }
}

#[test]
fn bench_beside_redis_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(field::punctual_binary());
    command.args(["bench", "--quick", "--only", "drain", "--beside", "redis", "--dir"]);
    let output = command.arg(dir.path()).env("PATH", dir.path()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("install Redis"), "{errors}");
}

/// Runs a command with standard input.
fn punctual_with(broker: &Broker, args: &[&str], input: &str) -> (bool, String, String) {
    use std::io::Write as _;
    let mut child = Command::new(field::punctual_binary())
        .args(args)
        .env("PUNCTUAL_BROKER", format!("http://{}", broker.address))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_wrong_line_of_a_file_does_not_stop_the_others_and_fails_the_command() {
    let broker = Broker::start(&[]);
    let good = r#"{"key": "a", "in": "1h", "target": {"queue": "q"}}"#;
    let lines =
        format!("{good}\n\n{{\"in\": \"soon\", \"target\": {{\"queue\": \"q\"}}}}\nno\n{good}");
    let file = ["schedule", "shop", "--file", "-"];
    let (success, printed, errors) = punctual_with(&broker, &file, &lines);
    assert!(!success && errors.contains("2 tasks were not scheduled"), "{errors}");
    assert!(printed.contains("line 3: in"), "{printed}");
    assert!(printed.contains("line 4: ") && printed.contains("scheduled 2 of 4"), "{printed}");
    let (_, printed, _) = punctual_with(&broker, &[&file[..], &["--json"]].concat(), &lines);
    let results: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((results.len(), &results[1]["field"]), (4, &json!("in")));
    let again = [&file[..], &["--idempotency-key", "import-7"]].concat();
    let keyless = r#"{"in": "1h", "target": {"queue": "q"}}"#;
    for _ in 0..2 {
        let (success, printed, errors) = punctual_with(&broker, &again, keyless);
        assert!(success && printed == "scheduled 1 of 1\n", "{printed}{errors}");
    }
    assert_eq!(json_of(&broker, &["stats", "shop"])["scheduled"], 2, "sent twice, made once");
    let (success, _, errors) = punctual_with(&broker, &file, "\n");
    assert!(!success && errors.contains("has no tasks"), "{errors}");
    let (success, _, errors) =
        punctual(&broker, &["schedule", "shop", "--file", "x", "--in", "1h"]);
    assert!(!success && errors.contains("cannot be used with"), "{errors}");
}

#[test]
fn deliveries_are_leased_and_settled_by_token_and_a_stale_one_fails_the_command() {
    let broker = Broker::start(&[]);
    json_of(&broker, &["schedule", "shop", "a", "--in", "0s", "--queue", "q", "--payload", "7"]);
    let lease = ["lease", "shop", "q", "--wait", "10s", "--lease", "1m"];
    let leased = json_of(&broker, &lease);
    let token = leased["deliveries"][0]["token"].as_str().unwrap();
    let extended = json_of(&broker, &["extend", "shop", "q", token, "2m"]);
    assert_eq!(extended["result"], "extended");
    let acked = json_of(&broker, &["ack", "shop", "q", token, "--result", "[1]"]);
    assert_eq!(acked["results"][0]["result"], "acked");
    for args in [
        vec!["ack", "shop", "q", token],
        vec!["fail", "shop", "q", token, "late", "--retry-in", "1s"],
        vec!["refuse", "shop", "q", token, "late"],
        vec!["extend", "shop", "q", token, "1m"],
    ] {
        let (success, printed, errors) = punctual(&broker, &args);
        assert!(!success && printed.contains("stale"), "{args:?}: {printed}{errors}");
    }
    let (success, table, _) = punctual(&broker, &["lease", "shop", "q"]);
    assert!(success && table == "none\n", "{table}");
}

#[test]
fn many_keys_are_touched_and_many_ids_cancelled() {
    let broker = Broker::start(&[]);
    let create = r#"{"within": "48h", "target": {"queue": "silent"}}"#;
    let made = json_of(&broker, &["touch", "home", "a", "b", "--create", create]);
    assert_eq!(made, json!({"touched": 0, "created": 2, "missing": []}));
    let (success, printed, _) = punctual_with(&broker, &["touch", "home", "--file", "-"], "a\nc\n");
    assert!(!success && printed.contains("touched 1, created 0\nc: there is no task"), "{printed}");
    let ids: Vec<String> = ["a", "b"]
        .map(|key| json_of(&broker, &["show", "home", key])["id"].as_str().unwrap().to_owned())
        .to_vec();
    let cancelled = json_of(&broker, &["cancel", "home", "--ids", &ids[0], &ids[1]]);
    assert_eq!(cancelled["results"][1], json!({"id": ids[1], "result": "cancelled"}));
}

#[test]
fn a_webhook_is_verified_without_a_broker() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("secret"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    let headers = "POST /hook HTTP/1.1\nWebhook-Id: msg_p5jXN8AQM9LWM0D4loKWxJek\n\
                   Webhook-Timestamp: 1614265330\n\
                   Webhook-Signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\n";
    std::fs::write(path("headers"), headers).unwrap();
    std::fs::write(path("body"), r#"{"test": 2432232314}"#).unwrap();
    let verify = |more: &[&str]| {
        let output = Command::new(field::punctual_binary())
            .args(["verify", "--secret", &format!("@{}", path("secret"))])
            .args(["--headers", &path("headers"), "--body", &path("body")])
            .args(more)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let now = ["--now", "2021-02-25T15:02:10Z"];
    assert_eq!(verify(&now), (true, "valid\n".to_owned(), String::new()));
    let (success, printed, errors) = verify(&[]);
    assert!(!success && printed.is_empty() && errors.contains("300 s from now"), "{errors}");
    let other = [&now[..], &["--header", "webhook-id:other", "--json"]].concat();
    let (success, printed, _) = verify(&other);
    assert!(!success && printed.starts_with(r#"{"reason":"no signature"#), "{printed}");
}
