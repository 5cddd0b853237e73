//! A database of a test, and a broker that has a connection to it.

use std::process::Command;
use std::sync::Arc;

use punctual_connectors::sql::schema::schema;
use punctual_sql::SqlKind;
use punctual_test_support::mariadb::MariadbServer;
use punctual_test_support::postgres::PostgresServer;
use punctual_test_support::{CutLink, TestBroker, eventually, punctual_binary};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    Mariadb,
}

pub(crate) enum Database {
    Postgres(PostgresServer),
    Mariadb(MariadbServer),
}

/// The statements of every test. Both databases understand them.
const STATEMENTS: &str = r#"
note = "insert into effects (fire_id, number) values (:fire_id, :number)"
hidden = "delete from effects"
[connections.db.statements.late]
sql = "insert into effects (fire_id, number) values (:fire_id, :n)"
params = { n = "/deep/0" }
"#;

impl Database {
    /// Starts a server with the tables of the tests.
    pub(crate) fn start(kind: Kind) -> Self {
        let mut database = match kind {
            Kind::Postgres => Self::Postgres(PostgresServer::start(&[])),
            Kind::Mariadb => Self::Mariadb(MariadbServer::start(&[])),
        };
        match &mut database {
            Self::Postgres(server) => drop(server.database("shop")),
            Self::Mariadb(server) => drop(server.database("shop")),
        }
        database.sql(schema(match kind {
            Kind::Postgres => SqlKind::Postgres,
            Kind::Mariadb => SqlKind::Mysql,
        }));
        let key = match kind {
            Kind::Postgres => "bigint generated always as identity",
            Kind::Mariadb => "bigint auto_increment",
        };
        database.sql(&format!(
            "create table effects (seq {key} primary key, fire_id varchar(64) not null, number \
             bigint not null check (number >= 0))"
        ));
        database
    }

    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "postgres",
            Self::Mariadb(_) => "mysql",
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url("shop"),
            Self::Mariadb(server) => server.url("shop"),
        }
    }

    pub(crate) const fn port(&self) -> u16 {
        match self {
            Self::Postgres(server) => server.port,
            Self::Mariadb(server) => server.port,
        }
    }

    pub(crate) fn sql(&self, statements: &str) -> String {
        match self {
            Self::Postgres(server) => server.sql("shop", statements),
            Self::Mariadb(server) => server.sql("shop", statements),
        }
    }

    /// Runs a script that may be longer than the words of a command.
    pub(crate) fn script(&self, script: &str) {
        match self {
            Self::Postgres(server) => server.script("shop", script),
            Self::Mariadb(server) => drop(server.sql("shop", script)),
        }
    }

    pub(crate) fn number(&self, query: &str) -> i64 {
        self.sql(query).trim().parse().unwrap_or(-1)
    }

    pub(crate) fn kill(&mut self) {
        match self {
            Self::Postgres(server) => server.kill(),
            Self::Mariadb(server) => server.kill(),
        }
    }

    /// Stops the server with SIGSTOP, until `resume`.
    pub(crate) fn suspend(&self) {
        match self {
            Self::Postgres(server) => server.suspend(),
            Self::Mariadb(server) => server.suspend(),
        }
    }

    pub(crate) fn resume(&self) {
        match self {
            Self::Postgres(server) => server.resume(),
            Self::Mariadb(server) => server.resume(),
        }
    }

    pub(crate) fn start_again(&mut self) {
        match self {
            Self::Postgres(server) => server.start_again(),
            Self::Mariadb(server) => server.start_again(),
        }
    }

    /// A statement that takes that many seconds.
    pub(crate) const fn sleep(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "select pg_sleep(:seconds)",
            Self::Mariadb(_) => "do sleep(:seconds)",
        }
    }

    /// A statement that takes that many seconds and has an effect.
    const fn held(&self) -> &'static str {
        match self {
            Self::Postgres(_) => {
                "insert into effects (fire_id, number) \
                 select :fire_id, :number from pg_sleep(:seconds)"
            }
            Self::Mariadb(_) => {
                "insert into effects (fire_id, number) \
                 select :fire_id, :number from (select sleep(:seconds)) as slept"
            }
        }
    }

    /// How many statements that take time run.
    pub(crate) fn sleeping(&self) -> i64 {
        self.number(match self {
            Self::Postgres(_) => {
                "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
            }
            Self::Mariadb(_) => {
                "select count(*) from information_schema.processlist where state = 'User sleep'"
            }
        })
    }

    /// The configuration of a broker with a connection `db` over a link to this database.
    pub(crate) fn config_over(&self, link: &CutLink) -> String {
        let port = |port: u16| format!(":{port}/");
        self.config().replace(&port(self.port()), &port(link.port))
    }

    /// The configuration of a broker with a connection `db` to this database.
    pub(crate) fn config(&self) -> String {
        let (kind, url, sleep, held) = (self.kind(), self.url(), self.sleep(), self.held());
        format!(
            "[connections.db]\nkind = \"{kind}\"\nurl = \"{url}\"\n\
             namespaces = [\"shop\", \"other\", \"quiet\"]\n\
             allow = [\"note\", \"late\", \"slow\", \"held\"]\n\
             [connections.db.statements]\nslow = \"{sleep}\"\nheld = \"{held}\"{STATEMENTS}"
        )
    }

    /// The configuration with an outbox whose tasks run the statement `note`.
    pub(crate) fn config_with_outbox(&self) -> String {
        let target = "{ sql = { connection = \"db\", statement = \"note\" } }";
        format!(
            "{}\n[[sources]]\nkind = \"outbox\"\nconnection = \"db\"\nnamespace = \"shop\"\n\
             poll = \"20ms\"\ntarget = {target}\n",
            self.config()
        )
    }
}

/// A broker with a configuration file, which can be killed and started again.
pub(crate) struct ConfiguredBroker {
    dir: Arc<TempDir>,
    /// Beside the store, which wants a folder of its own.
    config: NamedTempFile,
    broker: Option<TestBroker>,
}

impl ConfiguredBroker {
    pub(crate) fn start(config: &str) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let file = NamedTempFile::new().unwrap();
        std::fs::write(&file, config).unwrap();
        let mut broker = Self { dir, config: file, broker: None };
        broker.start_again();
        broker
    }

    pub(crate) fn start_again(&mut self) {
        let config = self.config.path().display().to_string();
        let broker = TestBroker::start_on(Arc::clone(&self.dir), &["--config", &config]);
        self.broker = Some(broker);
    }

    pub(crate) fn get(&self) -> &TestBroker {
        self.broker.as_ref().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        let broker = self.broker.take().unwrap();
        broker.signal("-KILL");
        broker.end();
    }

    /// Stops the broker as an operator does.
    pub(crate) fn stop(&mut self) -> std::process::ExitStatus {
        let broker = self.broker.take().unwrap();
        broker.signal("-TERM");
        broker.end()
    }

    /// Schedules a task that runs a statement.
    pub(crate) fn run(&self, key: &str, statement: &str, payload: &Value) -> (u16, Value) {
        self.get().put(key, task(statement, payload).to_string())
    }

    /// Waits for the last fire of a task to end. A claim without an attempt is no end yet.
    pub(crate) fn fire(&self, key: &str) -> Value {
        eventually(|| {
            let path = format!("/v1/shop/tasks/{key}/fires");
            let (_, fires) = self.get().call("GET", &path, &[], "");
            let ended = |fire: &&Value| fire["end"].is_string() && fire["attempts"] != json!([]);
            fires["fires"].as_array()?.iter().find(ended).cloned()
        })
    }

    pub(crate) fn connection(&self) -> Value {
        self.get().call("GET", "/v1/connections", &[], "").1["connections"][0].clone()
    }

    pub(crate) fn wait_for_connection(&self, state: &str) -> Value {
        eventually(|| Some(self.connection()).filter(|connection| connection["state"] == state))
    }

    /// Runs a command of the command line.
    pub(crate) fn cli(&self, words: &[&str]) -> String {
        let url = format!("http://{}", self.get().address);
        let output =
            Command::new(punctual_binary()).args(words).args(["--broker", &url]).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }
}

/// A task that is due now and runs a statement.
pub(crate) fn task(statement: &str, payload: &Value) -> Value {
    let target = json!({"sql": {"connection": "db", "statement": statement}});
    json!({"in": "0s", "target": target, "payload": payload})
}
