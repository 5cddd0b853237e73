//! The MySQL store for the conformance suite: tables of its own in a database on a shared server.

use std::cell::Cell;
use std::time::Duration;

use punctual_core::{Partitions, Timestamp};
use punctual_sql::mysql_async::prelude::Queryable as _;
use punctual_sql::mysql_async::{Row, from_value_opt};
use punctual_sql::{SqlOptions, mysql};
use punctual_store::conformance::fixtures::NOW;
use punctual_store::conformance::{PARTITIONS, StoreUnderTest};
use punctual_store_sql::{MysqlStore, SqlStoreOptions};
use punctual_test_support::mariadb::shared_database;

/// The clock of the database, in milliseconds.
const CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000";

/// Opens stores in one database.
pub(crate) struct MysqlSubject {
    pub(crate) options: SqlStoreOptions,
    now: Cell<Timestamp>,
}

impl MysqlSubject {
    pub(crate) fn new() -> Self {
        let sql = SqlOptions::from_url(&shared_database()).unwrap();
        let partitions = Partitions::new(PARTITIONS).unwrap();
        let mut options = SqlStoreOptions::new(sql, "Shop-1", partitions);
        options.sql.statement_timeout = Duration::from_secs(20);
        Self { options, now: Cell::new(NOW) }
    }

    /// Runs a statement past the store. Returns its rows as text.
    pub(crate) async fn sql(&self, statement: &str) -> Vec<Vec<String>> {
        let mut connection = mysql::connect(&self.options.sql).await.unwrap();
        let rows: Vec<Row> = connection.query(statement).await.unwrap();
        let text = |value| from_value_opt::<String>(value).unwrap_or_default();
        rows.into_iter().map(|row| row.unwrap().into_iter().map(text).collect()).collect()
    }
}

impl Drop for MysqlSubject {
    fn drop(&mut self) {
        // A test that failed keeps what it wrote.
        if std::thread::panicking() {
            return;
        }
        let options = self.options.sql.clone();
        let drop_database = async move {
            let mut connection = mysql::connect(&options).await.unwrap();
            let text = format!("DROP DATABASE {}", options.database);
            let _ = connection.query_drop(text).await;
        };
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(drop_database);
        })
        .join()
        .unwrap();
    }
}

impl StoreUnderTest for MysqlSubject {
    type Store = MysqlStore;
    const DURABLE: bool = true;
    const STEPS: u64 = 150;

    async fn open(&self) -> MysqlStore {
        MysqlStore::open(self.options.clone()).await.expect("the store opens").0
    }

    /// The database measures leases by its own clock, which a test cannot move. So the remaining
    /// time of each lease is moved instead.
    async fn pass(&self, _store: &MysqlStore, time: Duration) {
        self.now.set(self.now.get().after(time));
        let (now, age) = (self.now.get().as_millis(), time.as_millis());
        self.sql(&format!("UPDATE `Shop-1_seat` SET expires = {CLOCK} + `until` - {now}")).await;
        let member = format!("sent = sent - {age}, expires = expires - {age}");
        self.sql(&format!("UPDATE `Shop-1_member` SET {member}")).await;
    }
}
