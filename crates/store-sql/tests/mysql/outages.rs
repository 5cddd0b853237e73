//! Outages: the database is killed and hangs, connections and locks are lost.

use std::time::Duration;

use punctual_core::{BrokerId, Epoch, PartitionId, Partitions, Seat};
use punctual_sql::SqlOptions;
use punctual_sql::mysql;
use punctual_sql::mysql_async::Conn;
use punctual_sql::mysql_async::prelude::Queryable as _;
use punctual_store::conformance::fixtures::{NOW, TTL, at, id, partition, task};
use punctual_store::conformance::run;
use punctual_store::{Batch, BatchNo, Change, LeaseStore, Position, StoreError, TaskStore};
use punctual_store_sql::{MysqlStore, SqlStoreOptions};
use punctual_test_support::MariadbServer;
use punctual_test_support::mariadb::shared_database;

const TIMEOUT: Duration = Duration::from_millis(500);
/// Attempts before a test fails: each takes up to a timeout and a pause.
const ATTEMPTS_MAX: usize = 60;

fn options(url: &str) -> SqlStoreOptions {
    let sql = SqlOptions::from_url(url).unwrap();
    let mut options = SqlStoreOptions::new(sql, "shop", Partitions::ONE);
    options.sql.statement_timeout = TIMEOUT;
    options.sql.connect_timeout = TIMEOUT;
    options
}

/// Opens a store. A new server on a busy machine takes longer than the timeout at first.
async fn open(url: &str) -> (MysqlStore, Epoch) {
    let options = options(url);
    let seat = Seat::Partition(PartitionId::FIRST);
    for _ in 0..ATTEMPTS_MAX {
        let Ok((store, _)) = MysqlStore::open(options.clone()).await else { continue };
        if let Ok(lease) = store.acquire(seat, &BrokerId::new("a:1"), TTL, NOW).await {
            return (store, lease.epoch);
        }
    }
    panic!("the store never opened");
}

fn batch(epoch: Epoch, number: u64) -> Batch {
    let task = task(id(at(10), partition(0), epoch, number)).build();
    Batch::new(BatchNo::new(number), vec![Change::Put(task)])
}

/// Sends a batch until the store has it, as an owner does.
async fn write(store: &MysqlStore, epoch: Epoch, number: u64) {
    for _ in 0..ATTEMPTS_MAX {
        match store.apply(partition(0), epoch, batch(epoch, number)).await {
            Ok(()) => return,
            Err(StoreError::Unavailable(_)) => {}
            Err(other) => panic!("batch {number}: {other}"),
        }
    }
    panic!("batch {number} was never made");
}

async fn loaded(store: &MysqlStore) -> usize {
    for _ in 0..ATTEMPTS_MAX {
        match store.load(partition(0), Position::START, at(100), 1000).await {
            Ok(tasks) => return tasks.len(),
            Err(StoreError::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    panic!("the store never answered");
}

#[test]
fn a_batch_is_made_once_through_kills_and_hangs_of_the_server() {
    run(async {
        let mut server = MariadbServer::start(&[]);
        let (store, epoch) = open(&server.database("tasks")).await;
        let mut number = 0;
        for round in 0..3 {
            number += 1;
            write(&store, epoch, number).await;
            if round % 2 == 0 {
                server.kill();
                let down = store.apply(partition(0), epoch, batch(epoch, number + 1)).await;
                assert!(matches!(down, Err(StoreError::Unavailable(_))), "{down:?}");
                server.start_again();
            } else {
                server.suspend();
                let hung = store.apply(partition(0), epoch, batch(epoch, number + 1)).await;
                assert!(matches!(hung, Err(StoreError::Unavailable(_))), "{hung:?}");
                server.resume();
            }
            number += 1;
            write(&store, epoch, number).await;
        }
        assert_eq!(loaded(&store).await, 6);
        assert_eq!(store.rewinds(), 0);
    });
}

#[test]
fn a_seat_that_is_locked_delays_a_batch_which_is_then_made_once() {
    run(async {
        let url = shared_database();
        let (store, epoch) = open(&url).await;
        write(&store, epoch, 1).await;
        let mut other = mysql::connect(&SqlOptions::from_url(&url).unwrap()).await.unwrap();
        other.query_drop("START TRANSACTION").await.unwrap();
        other.query_drop("SELECT * FROM shop_seat FOR UPDATE").await.unwrap();
        let locked = store.apply(partition(0), epoch, batch(epoch, 2)).await;
        assert!(matches!(locked, Err(StoreError::Unavailable(_))), "{locked:?}");
        assert_eq!(loaded(&store).await, 1, "reads do not wait for locks");
        other.query_drop("ROLLBACK").await.unwrap();
        write(&store, epoch, 2).await;
        assert_eq!(loaded(&store).await, 2);
    });
}

#[test]
fn a_batch_that_fails_in_the_middle_changes_nothing_and_a_killed_connection_is_replaced() {
    run(async {
        let url = shared_database();
        let (store, epoch) = open(&url).await;
        write(&store, epoch, 1).await;
        let mut admin = mysql::connect(&SqlOptions::from_url(&url).unwrap()).await.unwrap();
        // The task is inserted, and then the counts cannot be moved.
        admin.query_drop("RENAME TABLE shop_counts TO other").await.unwrap();
        let broken = store.apply(partition(0), epoch, batch(epoch, 2)).await;
        assert!(matches!(broken, Err(StoreError::Broken(_))), "{broken:?}");
        admin.query_drop("RENAME TABLE other TO shop_counts").await.unwrap();
        assert_eq!(loaded(&store).await, 1);
        // The next transaction on the same connection does not commit what was left.
        write(&store, epoch, 2).await;
        assert_eq!(loaded(&store).await, 2);
        assert!(kill_connections(&mut admin).await > 0);
        write(&store, epoch, 3).await;
        assert_eq!(loaded(&store).await, 3);
    });
}

/// Ends the connections of a store. Returns how many it had.
async fn kill_connections(admin: &mut Conn) -> usize {
    let ids = "SELECT id FROM information_schema.processlist \
         WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    let ids: Vec<u64> = admin.query(ids).await.unwrap();
    for id in &ids {
        // A connection may have ended by itself.
        let _ = admin.query_drop(format!("KILL CONNECTION {id}")).await;
    }
    ids.len()
}

#[test]
fn a_read_is_answered_although_the_server_has_closed_idle_connections() {
    run(async {
        let url = shared_database();
        let (store, epoch) = open(&url).await;
        write(&store, epoch, 1).await;
        let mut admin = mysql::connect(&SqlOptions::from_url(&url).unwrap()).await.unwrap();
        let id = [id(at(10), partition(0), epoch, 1)];
        for _ in 0..3 {
            // Two at once use both connections for lookups.
            let get = || store.get(partition(0), &id);
            let (one, two) = tokio::join!(get(), get());
            assert!(one.unwrap()[0].is_some() && two.unwrap()[0].is_some());
            let loaded = store.load(partition(0), Position::START, at(100), 1000).await;
            assert_eq!(loaded.unwrap().len(), 1);
            kill_connections(&mut admin).await;
        }
        assert!(store.get(partition(0), &id).await.unwrap()[0].is_some());
    });
}
