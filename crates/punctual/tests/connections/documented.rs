//! The examples of `docs/connections.md` that write to an outbox, as they are printed there: from
//! Python with psycopg, and from JavaScript with pg, in a transaction of the caller.

use std::process::Command;

use punctual_test_support::servers::{node_modules, python_packages};
use punctual_test_support::wait_for;

use crate::database::{ConfiguredBroker, Database, Kind};

const DOCUMENT: &str = include_str!("../../../../docs/connections.md");

/// Returns the only block of code in a language.
fn example(language: &str) -> &'static str {
    let fence = format!("```{language}\n");
    let mut blocks = DOCUMENT.split(fence.as_str()).skip(1);
    let block = blocks.next().and_then(|rest| rest.split("\n```").next());
    assert!(blocks.next().is_none(), "one block of {language}");
    block.unwrap()
}

fn run(mut command: Command) {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Runs a program that commits a row with the number 1 and rolls one with the number 2 back.
fn becomes_a_task(program: impl Fn(&Database) -> Command) {
    let database = Database::start(Kind::Postgres);
    let config = database.config_with_outbox();
    let broker = ConfiguredBroker::start(&config);
    run(program(&database));
    let get = |key: &str| broker.get().get(key);
    wait_for("the task", || get("order-1").0 == 200);
    let (_, task) = get("order-1");
    assert_eq!((&task["state"], &task["payload"]["number"]), (&"scheduled".into(), &1.into()));
    assert_eq!(get("order-2").0, 404, "it was rolled back");
    assert_eq!(database.number("select count(*) from punctual_outbox"), 0);
    assert_eq!(database.number("select count(*) from punctual_outbox_rejected"), 0);
}

#[test]
fn the_example_for_psycopg_schedules_in_the_transaction_of_its_caller() {
    let program = |database: &Database| {
        let example = example("python").replace('\n', "\n        ");
        let text = format!(
            "import sys, psycopg\n\
             from psycopg.types.json import Jsonb\n\
             connection = psycopg.connect(sys.argv[1])\n\
             for number, end in [(1, connection.commit), (2, connection.rollback)]:\n\
             \x20   key, order = f'order-{{number}}', {{'number': number}}\n\
             \x20   with connection.cursor() as cursor:\n        {example}\n\
             \x20   end()\n"
        );
        let mut command = Command::new("/usr/bin/python3");
        command.env("PYTHONPATH", python_packages()).args(["-c", &text, &database.url()]);
        command
    };
    becomes_a_task(program);
}

#[test]
fn the_example_for_javascript_schedules_in_the_transaction_of_its_caller() {
    let program = |database: &Database| {
        let example = example("js");
        let text = format!(
            "const {{ Client }} = require('pg');\n\
             (async () => {{\n\
             const client = new Client({{ connectionString: process.argv[1] }});\n\
             await client.connect();\n\
             for (const [number, end] of [[1, 'commit'], [2, 'rollback']]) {{\n\
             const [key, order] = [`order-${{number}}`, {{ number }}];\n\
             await client.query('begin');\n{example}\nawait client.query(end);\n\
             }}\nawait client.end();\n\
             }})().catch((error) => {{ console.error(error); process.exit(1); }});\n"
        );
        let mut command = Command::new("node"); // words: allow
        command.env("NODE_PATH", node_modules()).args(["-e", &text, &database.url()]);
        command
    };
    becomes_a_task(program);
}
