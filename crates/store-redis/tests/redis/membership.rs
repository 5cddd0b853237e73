//! What the membership of the Redis store does beyond the contract of all stores.

use punctual_core::{BrokerId, Epoch, Heartbeat, PartitionId, Seat};
use punctual_store::conformance::fixtures::{NOW, TTL};
use punctual_store::conformance::{StoreUnderTest, run};
use punctual_store::{LeaseStore, MembershipStore, StoreError};
use punctual_store_redis::keys;

use crate::subject::RedisSubject;

#[test]
fn all_brokers_of_a_cluster_have_the_same_secret_and_other_clusters_another() {
    run(async {
        let (shop, other) = (RedisSubject::single(), RedisSubject::single());
        let secret = shop.open().await.secret().await.expect("a secret");
        assert_eq!(secret.len(), 64);
        assert_eq!(shop.open().await.secret().await.expect("a secret"), secret);
        assert_ne!(other.open().await.secret().await.expect("a secret"), secret);
    });
}

#[test]
fn a_malformed_secret_is_refused() {
    run(async {
        let subject = RedisSubject::cluster();
        let store = subject.open().await;
        subject.set(&keys::meta(subject.name()), "secret", "1234").await;
        assert!(matches!(store.secret().await, Err(StoreError::Damaged(_))));
    });
}

#[test]
fn a_lease_gets_an_epoch_above_those_in_heartbeats() {
    run(async {
        let store = RedisSubject::single().open().await;
        let holds = vec![(PartitionId::FIRST, Epoch::new(41).expect("a valid epoch"))];
        let broker = BrokerId::new("a:1");
        let heartbeat = Heartbeat { broker, holds, leaving: false, ahead_ms: None };
        store.heartbeat(&heartbeat, TTL).await.expect("Redis answers");
        let seat = Seat::Partition(PartitionId::FIRST);
        let lease = store.acquire(seat, &BrokerId::new("b:1"), TTL, NOW).await;
        assert_eq!(lease.expect("the lease is free").epoch.get(), 42);
    });
}

#[test]
fn unreadable_heartbeats_are_ignored() {
    run(async {
        let subject = RedisSubject::single();
        let store = subject.open().await;
        let roll = keys::roll(subject.name());
        subject.set(&roll, "b:1", "nonsense").await;
        subject.set(&roll, "c:1", "1 99999999999999 \u{2}of a later version").await;
        let broker = BrokerId::new("a:1");
        let heartbeat = Heartbeat { broker, holds: Vec::new(), leaving: false, ahead_ms: None };
        for _ in 0..2 {
            let roll = store.heartbeat(&heartbeat, TTL).await.expect("Redis answers");
            assert_eq!(roll.present.len(), 1, "{roll:?}");
            assert_eq!(roll.present[0].heartbeat, heartbeat);
        }
    });
}
