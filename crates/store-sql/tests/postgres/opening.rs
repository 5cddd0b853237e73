//! Opening: what never changes, other versions, servers that cannot do what is asked.

use punctual_core::Partitions;
use punctual_store::conformance::{StoreUnderTest, run};
use punctual_store_sql::{PostgresStore, SqlDurability, SqlOpenError, SqlStoreOptions};

use crate::subject::PostgresSubject;

#[test]
fn another_number_of_partitions_and_another_format_are_refused() {
    run(async {
        let subject = PostgresSubject::new();
        let found = PostgresStore::partitions_in(&subject.options).await.unwrap();
        assert_eq!(found, None);
        drop(subject.open().await);
        let found = PostgresStore::partitions_in(&subject.options).await.unwrap();
        assert_eq!(found, Some(subject.options.partitions));
        let other =
            SqlStoreOptions { partitions: Partitions::new(5).unwrap(), ..subject.options.clone() };
        let refused = PostgresStore::open(other).await.map(drop).unwrap_err();
        assert!(matches!(refused, SqlOpenError::Partitions { .. }), "{refused}");
        subject.sql("UPDATE meta SET value = '1' WHERE name = 'format'").await;
        let refused = PostgresStore::open(subject.options.clone()).await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("export"), "{refused}");
    });
}

#[test]
fn brokers_that_open_a_new_store_at_once_agree() {
    run(async {
        let subject = PostgresSubject::new();
        let open = || PostgresStore::open(subject.options.clone());
        let (a, b, c) = tokio::join!(open(), open(), open());
        let stores = [a, b, c].map(|opened| opened.unwrap().0);
        let secret = stores[0].secret().await.unwrap();
        for store in &stores {
            assert_eq!(store.secret().await.unwrap(), secret);
        }
    });
}

#[test]
fn the_server_without_fsync_causes_a_warning_and_cannot_promise_it() {
    run(async {
        let subject = PostgresSubject::new();
        let (_store, warnings) = PostgresStore::open(subject.options.clone()).await.unwrap();
        assert!(warnings.iter().any(|text| text.contains("fsync = off")), "{warnings:?}");
        for durability in [SqlDurability::Fsync, SqlDurability::Replica] {
            let options = SqlStoreOptions { durability, ..subject.options.clone() };
            let refused = PostgresStore::open(options).await.map(drop).unwrap_err();
            assert!(matches!(refused, SqlOpenError::Server(_)), "{refused}");
        }
    });
}
