//! Outages: the database is killed, hangs, and fails over to a replica.

use std::time::Duration;

use punctual_core::{BrokerId, Epoch, PartitionId, Partitions, Seat};
use punctual_sql::SqlOptions;
use punctual_store::conformance::fixtures::{NOW, TTL, at, id, partition, task};
use punctual_store::conformance::run;
use punctual_store::{Batch, BatchNo, Change, LeaseStore, Position, StoreError, TaskStore};
use punctual_store_sql::{PostgresStore, SqlDurability, SqlStoreOptions};
use punctual_test_support::PostgresServer;
use punctual_test_support::postgres::ROLE;

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
async fn open(options: SqlStoreOptions) -> (PostgresStore, Epoch) {
    let seat = Seat::Partition(PartitionId::FIRST);
    for _ in 0..ATTEMPTS_MAX {
        let Ok((store, _)) = PostgresStore::open(options.clone()).await else { continue };
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
async fn write(store: &PostgresStore, epoch: Epoch, number: u64) {
    for _ in 0..ATTEMPTS_MAX {
        match store.apply(partition(0), epoch, batch(epoch, number)).await {
            Ok(()) => return,
            Err(StoreError::Unavailable(_)) => {}
            Err(other) => panic!("batch {number}: {other}"),
        }
    }
    panic!("batch {number} was never made");
}

async fn loaded(store: &PostgresStore) -> usize {
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
        let mut server = PostgresServer::start(&[]);
        let (store, epoch) = open(options(&server.url("postgres"))).await;
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
fn a_read_is_answered_although_the_server_has_closed_idle_connections() {
    run(async {
        let server = PostgresServer::start(&[]);
        let (store, epoch) = open(options(&server.url("postgres"))).await;
        write(&store, epoch, 1).await;
        let id = [id(at(10), partition(0), epoch, 1)];
        for _ in 0..20 {
            assert!(store.get(partition(0), &id).await.unwrap()[0].is_some());
            let others = "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
            server.sql("postgres", others);
        }
        assert!(store.get(partition(0), &id).await.unwrap()[0].is_some());
    });
}

#[test]
fn a_failover_to_a_synchronous_replica_loses_nothing() {
    run(async {
        let mut primary = PostgresServer::start(&[]);
        let replica = primary.start_replica("standby", &[]);
        primary.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'");
        primary.sql("postgres", "SELECT pg_reload_conf()");
        let synchronous = "SELECT sync_state FROM pg_stat_replication";
        punctual_test_support::wait_for("the replica to be synchronous", || {
            primary.sql("postgres", synchronous).trim() == "sync"
        });
        let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port, replica.port);
        let mut options = options(&format!("postgres://{ROLE}@{hosts}/postgres"));
        options.durability = SqlDurability::Replica;
        let (store, epoch) = open(options).await;
        for number in 1..=20 {
            write(&store, epoch, number).await;
        }
        // A commit that waits for a replica that is gone is not acknowledged.
        replica.suspend();
        let waits = store.apply(partition(0), epoch, batch(epoch, 21)).await;
        assert!(matches!(waits, Err(StoreError::Unavailable(_))), "{waits:?}");
        primary.kill();
        replica.resume();
        replica.promote();
        // The new primary has no replica of its own.
        replica.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = ''");
        replica.sql("postgres", "SELECT pg_reload_conf()");
        write(&store, epoch, 21).await;
        assert_eq!(loaded(&store).await, 21);
        assert_eq!(store.rewinds(), 0);
    });
}
