//! The PostgreSQL store for the conformance suite: a schema of its own on a shared server.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use punctual_core::{Partitions, Timestamp};
use punctual_sql::{SqlOptions, postgres};
use punctual_store::conformance::fixtures::NOW;
use punctual_store::conformance::{PARTITIONS, StoreUnderTest};
use punctual_store_sql::{PostgresStore, SqlStoreOptions};
use punctual_test_support::postgres::{ROLE, shared_port};

/// Opens stores in one schema.
pub(crate) struct PostgresSubject {
    pub(crate) options: SqlStoreOptions,
    now: Cell<Timestamp>,
}

impl PostgresSubject {
    pub(crate) fn new() -> Self {
        let url = format!("postgres://{ROLE}@127.0.0.1:{}/postgres", shared_port());
        let sql = SqlOptions::from_url(&url).unwrap();
        let entropy = RandomState::new().hash_one(0);
        let cluster = format!("t{}-{entropy:x}", std::process::id());
        let partitions = Partitions::new(PARTITIONS).unwrap();
        let mut options = SqlStoreOptions::new(sql, &cluster, partitions);
        options.sql.statement_timeout = Duration::from_secs(20);
        Self { options, now: Cell::new(NOW) }
    }

    /// Runs statements past the store, in its schema.
    pub(crate) async fn sql(&self, statements: &str) {
        let connection = postgres::connect(&self.options.sql).await.unwrap();
        let cluster = &self.options.cluster;
        let text = format!("SET search_path TO \"{cluster}\"; {statements}");
        connection.batch_execute(&text).await.unwrap();
    }
}

impl Drop for PostgresSubject {
    fn drop(&mut self) {
        let cluster = &self.options.cluster;
        let text = format!("DROP SCHEMA IF EXISTS \"{cluster}\" CASCADE");
        let url = format!("postgres://{ROLE}@127.0.0.1:{}/postgres", shared_port());
        let options = SqlOptions::from_url(&url).unwrap();
        // A test that failed keeps what it wrote.
        if std::thread::panicking() {
            return;
        }
        let drop_schema = async move {
            let connection = postgres::connect(&options).await.unwrap();
            let _ = connection.batch_execute(&text).await;
        };
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(drop_schema);
        })
        .join()
        .unwrap();
    }
}

impl StoreUnderTest for PostgresSubject {
    type Store = PostgresStore;
    const DURABLE: bool = true;
    const STEPS: u64 = 150;

    async fn open(&self) -> PostgresStore {
        PostgresStore::open(self.options.clone()).await.expect("the store opens").0
    }

    /// The database measures leases by its own clock, which a test cannot move. So the remaining
    /// time of each lease is moved instead.
    async fn pass(&self, _store: &PostgresStore, time: Duration) {
        self.now.set(self.now.get().after(time));
        let (now, age) = (self.now.get().as_millis(), time.as_millis());
        let clock = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        self.sql(&format!(
            "UPDATE seat SET expires = {clock} + until - {now}; \
             UPDATE member SET sent = sent - {age}, expires = expires - {age}"
        ))
        .await;
    }
}
