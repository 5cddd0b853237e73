//! What opening a store checks: partitions, format, and the settings of the server.

use punctual_core::Partitions;
use punctual_store_redis::{Durability, RedisOpenError, RedisOptions, RedisStore, keys};
use punctual_test_support::redis::RedisServer;

use crate::writer::{P, TestWriter, options};

#[tokio::test]
async fn the_number_of_partitions_is_fixed_at_first_start() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let (store, warnings) = RedisStore::open(settings.clone()).await.expect("the store opens");
    assert_eq!(store.partitions(), settings.partitions);
    assert_eq!(warnings.len(), 1, "appendonly no: {warnings:?}");
    let other = RedisOptions { partitions: Partitions::ONE, ..settings.clone() };
    let refused = RedisStore::open(other).await;
    assert!(matches!(refused, Err(RedisOpenError::Partitions { .. })), "{refused:?}");
    RedisStore::open(settings.clone()).await.expect("the same options open it again");
    server.cli(&["HSET", &keys::meta(&settings.cluster), "format", "99"]);
    let refused = RedisStore::open(settings.clone()).await;
    assert!(matches!(refused, Err(RedisOpenError::Format { .. })), "{refused:?}");
    let named = RedisOptions { cluster: "a}b".to_owned(), ..settings };
    let refused = RedisStore::open(named).await;
    assert!(matches!(refused, Err(RedisOpenError::Options(_))), "{refused:?}");
    // Two groups of brokers on one server do not see each other.
    let mut one = TestWriter::open(options(vec![server.url()]), P).await;
    let two = TestWriter::open(options(vec![server.url()]), P).await;
    one.put(2).await;
    assert_eq!(two.loaded().await.expect("Redis answers"), []);
}

#[tokio::test]
async fn opening_warns_of_settings_that_endanger_data() {
    let server = RedisServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    let mut settings = options(vec![server.url()]);
    settings.durability = Durability::Replica;
    let (_, warnings) = RedisStore::open(settings.clone()).await.expect("the store opens");
    for word in ["appendonly no", "allkeys-lru", "no replica"] {
        assert!(warnings.iter().any(|warning| warning.contains(word)), "{word}: {warnings:?}");
    }
    settings.durability = Durability::Fsync;
    let refused = RedisStore::open(settings).await;
    assert!(matches!(refused, Err(RedisOpenError::Server(_))), "{refused:?}");
}
