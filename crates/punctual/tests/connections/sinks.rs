//! What every sink does: confirmed, refused, away and back, killed, slow, drained.

use std::time::Duration;

use punctual_test_support::{eventually, pause, refused_start, wait_for};
use serde_json::{Value, json};

use crate::database::{ConfiguredBroker, Database, Kind, task};

crate::on_both!(
    a_committed_statement_is_done_and_its_row_count_is_kept,
    what_the_database_never_takes_is_refused_and_does_not_harm_the_others,
    a_task_can_only_name_what_the_configuration_opens_to_its_namespace,
    tasks_wait_for_a_connection_that_is_away_and_no_attempt_is_used_up,
    a_slow_statement_does_not_delay_another,
    namespaces_with_slow_statements_leave_sessions_for_another,
    a_task_that_waits_for_a_session_is_scheduled_and_can_be_changed_or_cancelled,
    a_statement_that_takes_too_long_is_a_failed_attempt_and_changes_nothing,
    a_wrong_password_is_a_connection_that_is_away_with_the_reason,
    a_broker_that_drains_finishes_its_statement,
    exactly_once_has_one_effect_through_kills_of_broker_and_database,
);

fn a_committed_statement_is_done_and_its_row_count_is_kept(kind: Kind) {
    let database = Database::start(kind);
    let broker = ConfiguredBroker::start(&database.config());
    assert_eq!(broker.run("a", "note", &json!({"number": 7})).0, 201);
    assert_eq!(broker.run("b", "late", &json!({"deep": [8]})).0, 201);
    let mut with_params = task("note", &json!({}));
    with_params["target"]["sql"]["params"] = json!({"number": 9});
    with_params["guarantee"] = json!("at_most_once");
    assert_eq!(broker.get().put("c", with_params.to_string()).0, 201);
    for key in ["a", "b", "c"] {
        let fire = broker.fire(key);
        assert_eq!(fire["end"], "done", "{fire}");
        assert_eq!(fire["attempts"][0]["answer"]["text"], "1 row", "{fire}");
    }
    let numbers = database.sql("select number from effects order by number");
    assert_eq!(numbers.split_whitespace().collect::<Vec<_>>(), ["7", "8", "9"]);
    let fire_id = broker.fire("a")["fire_id"].as_str().unwrap().to_owned();
    assert_eq!(database.sql("select fire_id from effects where number = 7").trim(), fire_id);
    let connection = broker.connection();
    assert_eq!((&connection["confirmed"], &connection["state"]), (&json!(3), &json!("ready")));
    assert!(broker.cli(&["connections"]).contains("ready"));
    assert!(broker.cli(&["connections", "--test"]).contains("true"));
    let sql = ["schedule", "shop", "d", "--in", "0s", "--sql", "db/note", "--param", "number=4"];
    assert!(broker.cli(&sql).contains("db"));
    assert_eq!(broker.fire("d")["end"], "done");
}

fn what_the_database_never_takes_is_refused_and_does_not_harm_the_others(kind: Kind) {
    let database = Database::start(kind);
    let broker = ConfiguredBroker::start(&database.config());
    // A hundred due at once are one batch or a few.
    let numbers = 0..100;
    let line = |number: i64| {
        let payload = match number {
            13 => json!({"number": -1}),
            17 => json!({"other": 1}),
            19 => json!({"number": "no number"}),
            _ => json!({"number": number}),
        };
        let mut task = task("note", &payload);
        task["key"] = json!(format!("n{number}"));
        task["in"] = json!("500ms");
        task
    };
    let tasks: Vec<Value> = numbers.map(line).collect();
    let (status, _) = broker.get().call("POST", "/v1/shop/tasks", &[], json!(tasks).to_string());
    assert_eq!(status, 200);
    for bad in ["n13", "n17", "n19"] {
        let fire = broker.fire(bad);
        assert_eq!(
            (&fire["end"], &fire["attempts"][0]["outcome"]),
            (&json!("dead"), &json!("refused"))
        );
    }
    let reason = broker.fire("n17")["attempts"][0].to_string();
    assert!(reason.contains("nothing at") && reason.contains("/number"), "{reason}");
    wait_for("the others", || database.number("select count(*) from effects") == 97);
}

fn a_task_can_only_name_what_the_configuration_opens_to_its_namespace(kind: Kind) {
    let database = Database::start(kind);
    let broker = ConfiguredBroker::start(&database.config());
    let with = |connection: &str, statement: &str| {
        let target = json!({"sql": {"connection": connection, "statement": statement}});
        json!({"in": "0s", "target": target}).to_string()
    };
    for (namespace, body, field, problem) in [
        ("shop", with("db", "nothing"), "target.sql.statement", "does not allow"),
        ("shop", with("db", "hidden"), "target.sql.statement", "does not allow"),
        ("shop", with("other", "note"), "target.sql.connection", "no connection"),
        ("bank", with("db", "note"), "target.sql.connection", "not open to namespace"),
        ("shop", with("db", "a b"), "target.sql.statement", "must be 1 to 64 letters"),
    ] {
        let path = format!("/v1/{namespace}/tasks/a");
        let (status, answer) = broker.get().call("PUT", &path, &[], body);
        assert_eq!((status, answer["field"].as_str()), (422, Some(field)), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(problem), "{answer}");
    }
    let kind = database.kind();
    for (config, problem) in [
        ("urll = \"x\"", "unknown field `urll`"),
        ("url = \"redis://a@b/c\"", "connections.db.url: "),
        ("url = \"@/no/such\"", "connections.db.url: "),
        ("sessions = 0", "connections.db.sessions: must be 1 to 32"),
        ("password = \"hush\"", "connections.db.password: must be @"),
        ("statements = { a = \"\" }", "connections.db.statements.a: must not be empty"),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let url = if config.starts_with("url =") {
            String::new()
        } else {
            format!("url = \"{}\"\n", database.url())
        };
        let text = format!("[connections.db]\nkind = \"{kind}\"\n{url}{config}\n");
        std::fs::write(&file, text).unwrap();
        let error = refused_start(&["--config", &file.path().display().to_string()], &[]);
        assert!(error.contains(problem) && !error.contains("hush"), "{config}: {error}");
    }
}

fn tasks_wait_for_a_connection_that_is_away_and_no_attempt_is_used_up(kind: Kind) {
    let (mut database, other) = (Database::start(kind), Database::start(kind));
    let second = other.config().replace("connections.db", "connections.other");
    let broker = ConfiguredBroker::start(&format!("{}\n{second}", database.config()));
    broker.wait_for_connection("ready");
    database.kill();
    broker.wait_for_connection("away");
    assert_eq!(broker.run("waits", "note", &json!({"number": 1})).0, 201);
    let mut elsewhere = task("note", &json!({"number": 2}));
    elsewhere["target"]["sql"]["connection"] = json!("other");
    assert_eq!(broker.get().put("elsewhere", elsewhere.to_string()).0, 201);
    assert_eq!(broker.fire("elsewhere")["end"], "done");
    let path = "/v1/shop/tasks/waits/explain";
    let summary = eventually(|| {
        let (_, explained) = broker.get().call("GET", path, &[], "");
        let summary = explained["summary"].as_str()?.to_owned();
        summary.contains("away since").then_some(summary)
    });
    assert!(summary.contains("waits for connection \"db\""), "{summary}");
    database.start_again();
    let fire = broker.fire("waits");
    assert_eq!(fire["end"], "done", "{fire}");
    assert_eq!(fire["attempts"].as_array().unwrap().len(), 1, "{fire}");
    assert_eq!(database.number("select count(*) from effects"), 1);
    // A task that waits can be cancelled.
    database.kill();
    broker.wait_for_connection("away");
    assert_eq!(broker.run("never", "note", &json!({"number": 3})).0, 201);
    assert_eq!(broker.get().delete("never").1["result"], "cancelled");
    database.start_again();
    broker.wait_for_connection("ready");
    assert_eq!(broker.run("after", "note", &json!({"number": 4})).0, 201);
    assert_eq!(broker.fire("after")["end"], "done");
    assert_eq!(database.number("select count(*) from effects where number = 3"), 0);
}

fn a_slow_statement_does_not_delay_another(kind: Kind) {
    let database = Database::start(kind);
    let broker = ConfiguredBroker::start(&database.config());
    for n in 0..8 {
        let mut slow = task("slow", &json!({"seconds": 20}));
        slow["timeout"] = json!("60s");
        assert_eq!(broker.get().put(&format!("slow{n}"), slow.to_string()).0, 201);
    }
    wait_for("slow statements in flight", || {
        broker.connection()["in_flight"].as_u64().is_some_and(|count| count > 0)
    });
    assert_eq!(broker.run("quick", "note", &json!({"number": 1})).0, 201);
    assert_eq!(broker.fire("quick")["end"], "done");
    assert!(broker.connection()["in_flight"].as_u64().unwrap() > 0, "the slow ones still run");
}

fn namespaces_with_slow_statements_leave_sessions_for_another(kind: Kind) {
    let database = Database::start(kind);
    let broker = ConfiguredBroker::start(&database.config());
    let mut slow = task("slow", &json!({"seconds": 60}));
    slow["timeout"] = json!("2m");
    for namespace in ["shop", "other"] {
        for number in 0..32 {
            let path = format!("/v1/{namespace}/tasks/slow{number}");
            assert_eq!(broker.get().call("PUT", &path, &[], slow.to_string()).0, 201);
            // So that they are not one batch.
            pause(Duration::from_millis(5));
        }
    }
    wait_for("slow statements in flight and others that wait", || {
        let connection = broker.connection();
        connection["in_flight"].as_u64() > Some(1) && connection["waiting"].as_u64() > Some(0)
    });
    let quick = task("note", &json!({"number": 1})).to_string();
    assert_eq!(broker.get().call("PUT", "/v1/quiet/tasks/quick", &[], quick).0, 201);
    wait_for("the quiet namespace", || database.number("select count(*) from effects") == 1);
}

fn a_task_that_waits_for_a_session_is_scheduled_and_can_be_changed_or_cancelled(kind: Kind) {
    let database = Database::start(kind);
    let broker = ConfiguredBroker::start(&database.config());
    broker.wait_for_connection("ready");
    database.suspend();
    let waiting = || broker.connection()["waiting"].as_u64().unwrap();
    let mut holding = 0;
    wait_for("a task that waits", || {
        holding += 1;
        let holds = broker.run(&format!("holds{holding}"), "note", &json!({"number": 100}));
        assert_eq!(holds.0, 201);
        pause(Duration::from_millis(50));
        waiting() > 0
    });
    let others = waiting();
    for (number, key) in (1..).zip(["cancelled", "claimed", "touched", "paused", "replaced"]) {
        let mut task = task("note", &json!({"number": number}));
        if key == "claimed" {
            task["guarantee"] = json!("at_most_once");
        }
        assert_eq!(broker.get().put(key, task.to_string()).0, 201);
    }
    wait_for("five that wait", || waiting() == others + 5);
    assert_eq!(broker.get().get("cancelled").1["state"], "scheduled");
    for key in ["cancelled", "claimed"] {
        assert_eq!(broker.get().delete(key).1, json!({"result": "cancelled"}), "{key}");
    }
    let call = |path: &str, body: &'static str| broker.get().call("POST", path, &[], body).0;
    assert_eq!(call("/v1/shop/tasks/touched/touch", r#"{"in": "1h"}"#), 200);
    assert_eq!(call("/v1/shop/tasks/paused/pause", ""), 200);
    assert_eq!(broker.run("replaced", "note", &json!({"number": 50})).0, 200);
    wait_for("the replaced one alone", || waiting() == others + 1);
    pause(Duration::from_millis(300));
    database.resume();
    let fire = broker.fire("replaced");
    assert_eq!(fire["end"], "done", "{fire}");
    assert!(fire["lag_ms"].as_u64().unwrap() >= 300, "until it was sent: {fire}");
    for number in 1..=holding {
        assert_eq!(broker.fire(&format!("holds{number}"))["end"], "done");
    }
    let numbers = database.sql("select number from effects where number < 100");
    assert_eq!(numbers.split_whitespace().collect::<Vec<_>>(), ["50"]);
    let (_, stats) = broker.get().call("GET", "/v1/shop/stats", &[], "");
    let counts = ["cancelled", "scheduled", "paused"].map(|state| stats[state].as_u64().unwrap());
    assert_eq!(counts, [2, 1, 1], "{stats}");
}

fn a_statement_that_takes_too_long_is_a_failed_attempt_and_changes_nothing(kind: Kind) {
    let database = Database::start(kind);
    let broker = ConfiguredBroker::start(&database.config());
    let mut slow = task("slow", &json!({"seconds": 30}));
    slow["timeout"] = json!("200ms");
    slow["retry"] = json!({"attempts_max": 2, "backoff": {"fixed": "10ms"}});
    assert_eq!(broker.get().put("slow", slow.to_string()).0, 201);
    let fire = broker.fire("slow");
    assert_eq!(fire["end"], "dead", "{fire}");
    assert_eq!(fire["attempts"].as_array().unwrap().len(), 2, "{fire}");
    assert_eq!(broker.run("next", "note", &json!({"number": 1})).0, 201);
    assert_eq!(broker.fire("next")["end"], "done");
}

fn a_wrong_password_is_a_connection_that_is_away_with_the_reason(kind: Kind) {
    let database = Database::start(kind);
    if let Database::Postgres(server) = &database {
        server.make_guarded_role();
    }
    let user = punctual_test_support::postgres::GUARDED_ROLE;
    let (_, place) =
        database.url().rsplit_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "hush\n").unwrap();
    let url = format!("{}://{user}@{place}", database.kind());
    let config = format!(
        "[connections.db]\nkind = \"{}\"\nurl = \"{url}\"\npassword = \"@{}\"\nnamespaces = \
         [\"shop\"]\nstatements = {{ note = \"select 1\" }}\n",
        database.kind(),
        file.path().display()
    );
    let broker = ConfiguredBroker::start(&config);
    let connection =
        eventually(|| Some(broker.connection()).filter(|it| it["problem"].is_string()));
    assert_eq!(connection["state"], "away");
    let problem = connection["problem"].as_str().unwrap();
    assert!(problem.contains("refused the connection") && !problem.contains("hush"), "{problem}");
    let tested = broker.cli(&["connections", "--test", "--json"]);
    assert!(tested.contains("false") && !tested.contains("hush"), "{tested}");
}

fn a_broker_that_drains_finishes_its_statement(kind: Kind) {
    let database = Database::start(kind);
    let mut broker = ConfiguredBroker::start(&database.config());
    assert_eq!(broker.run("slow", "slow", &json!({"seconds": 1})).0, 201);
    wait_for("a statement in flight", || broker.connection()["in_flight"] == 1);
    assert!(broker.stop().success());
    broker.start_again();
    let fire = broker.fire("slow");
    assert_eq!(fire["end"], "done", "{fire}");
    assert_eq!(fire["attempts"].as_array().unwrap().len(), 1, "{fire}");
}

fn exactly_once_has_one_effect_through_kills_of_broker_and_database(kind: Kind) {
    crate::long::exactly_once(kind, 4);
}
