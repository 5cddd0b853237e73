//! Opening: what never changes, other versions, servers that cannot do what is asked.

use punctual_core::Partitions;
use punctual_store::conformance::{StoreUnderTest, run};
use punctual_store_sql::{MysqlStore, SqlDurability, SqlOpenError, SqlStoreOptions};
use punctual_test_support::MariadbServer;

use crate::subject::MysqlSubject;

#[test]
fn another_number_of_partitions_and_another_format_are_refused() {
    run(async {
        let subject = MysqlSubject::new();
        let found = MysqlStore::partitions_in(&subject.options).await.unwrap();
        assert_eq!(found, None);
        drop(subject.open().await);
        let found = MysqlStore::partitions_in(&subject.options).await.unwrap();
        assert_eq!(found, Some(subject.options.partitions));
        let other =
            SqlStoreOptions { partitions: Partitions::new(5).unwrap(), ..subject.options.clone() };
        let refused = MysqlStore::open(other).await.map(drop).unwrap_err();
        assert!(matches!(refused, SqlOpenError::Partitions { .. }), "{refused}");
        subject.sql("UPDATE `Shop-1_meta` SET value = '1' WHERE name = 'format'").await;
        let refused = MysqlStore::open(subject.options.clone()).await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("export"), "{refused}");
    });
}

#[test]
fn brokers_that_open_a_new_store_at_once_agree() {
    run(async {
        let subject = MysqlSubject::new();
        let open = || MysqlStore::open(subject.options.clone());
        let (a, b, c) = tokio::join!(open(), open(), open());
        let stores = [a, b, c].map(|opened| opened.unwrap().0);
        let secret = stores[0].secret().await.unwrap();
        for store in &stores {
            assert_eq!(store.secret().await.unwrap(), secret);
        }
    });
}

#[test]
fn clusters_of_one_database_are_apart() {
    run(async {
        let subject = MysqlSubject::new();
        drop(subject.open().await);
        let other = SqlStoreOptions { cluster: "Shop-2".to_owned(), ..subject.options.clone() };
        assert_eq!(MysqlStore::partitions_in(&other).await.unwrap(), None);
        let longest = SqlStoreOptions { cluster: "a".repeat(50), ..subject.options.clone() };
        MysqlStore::open(longest).await.unwrap();
        let longer = SqlStoreOptions { cluster: "a".repeat(51), ..subject.options.clone() };
        let refused = MysqlStore::open(longer).await.map(drop).unwrap_err();
        assert!(matches!(refused, SqlOpenError::Options(_)), "{refused}");
    });
}

#[test]
fn the_server_that_does_not_sync_causes_a_warning_and_cannot_promise_it() {
    run(async {
        let subject = MysqlSubject::new();
        let (_store, warnings) = MysqlStore::open(subject.options.clone()).await.unwrap();
        let named = |text: &String| text.contains("innodb_flush_log_at_trx_commit = 2");
        assert!(warnings.iter().any(named), "{warnings:?}");
        for durability in [SqlDurability::Fsync, SqlDurability::Replica] {
            let options = SqlStoreOptions { durability, ..subject.options.clone() };
            let refused = MysqlStore::open(options).await.map(drop).unwrap_err();
            assert!(matches!(refused, SqlOpenError::Server(_)), "{refused}");
        }
    });
}

#[test]
fn rights_on_the_tables_are_enough_for_a_store_that_exists() {
    run(async {
        let subject = MysqlSubject::new();
        let database = subject.options.sql.database.clone();
        let user = format!("u{}", database.trim_start_matches("test_"));
        subject.sql(&format!("CREATE OR REPLACE USER {user}@'%' IDENTIFIED BY 'x'")).await;
        let rights = "SELECT, INSERT, UPDATE, DELETE";
        subject.sql(&format!("GRANT {rights} ON {database}.* TO {user}@'%'")).await;
        let mut options = subject.options.clone();
        options.sql.user.clone_from(&user);
        options.sql.password = Some(punctual_sql::SqlSecret::new("x".to_owned()));
        let refused = MysqlStore::open(options.clone()).await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("1142"), "{refused}");
        drop(subject.open().await);
        MysqlStore::open(options).await.unwrap();
        subject.sql(&format!("DROP USER {user}@'%'")).await;
    });
}

#[test]
fn semi_synchronous_replication_allows_the_durability_replica() {
    run(async {
        let server = MariadbServer::start(&[
            "--rpl_semi_sync_master_enabled=ON",
            "--rpl_semi_sync_master_timeout=3600000",
        ]);
        let url = server.database("tasks");
        let sql = punctual_sql::SqlOptions::from_url(&url).unwrap();
        let mut options = SqlStoreOptions::new(sql, "shop", Partitions::ONE);
        options.durability = SqlDurability::Replica;
        MysqlStore::open(options).await.unwrap();
    });
}
