//! Batches that do not fit into one packet of the server.

use bytes::Bytes;
use punctual_core::{BrokerId, PAYLOAD_BYTES_MAX, Payload, Seat};
use punctual_store::conformance::fixtures::{NOW, TTL, at, id, partition, task};
use punctual_store::conformance::{StoreUnderTest, run};
use punctual_store::{Batch, BatchNo, Change, LeaseStore, Position, StoreError, TaskStore};

use crate::subject::MysqlSubject;

#[test]
fn a_batch_of_many_packets_is_made_as_a_whole_or_not_at_all() {
    run(async {
        let subject = MysqlSubject::new();
        let store = subject.open().await;
        let p = partition(0);
        let lease = store.acquire(Seat::Partition(p), &BrokerId::new("a:1"), TTL, NOW).await;
        let epoch = lease.unwrap().epoch;
        let payload = Payload::Binary {
            bytes: Bytes::from(vec![0xff; PAYLOAD_BYTES_MAX]),
            content_type: "application/octet-stream".into(),
        };
        // As text, each is half a megabyte, and a packet has eight.
        let large: Vec<Change> = (0..20)
            .map(|number| {
                let task = task(id(at(10), p, epoch, number)).payload(payload.clone());
                Change::Put(task.build())
            })
            .collect();
        let batch = |number| Batch::new(BatchNo::new(number), large.clone());
        let gap = store.apply(p, epoch, batch(2)).await;
        assert!(matches!(gap, Err(StoreError::Gap { .. })), "{gap:?}");
        // Only the last packet fails.
        subject.sql("RENAME TABLE `Shop-1_counts` TO other").await;
        let broken = store.apply(p, epoch, batch(1)).await;
        assert!(matches!(broken, Err(StoreError::Broken(_))), "{broken:?}");
        subject.sql("RENAME TABLE other TO `Shop-1_counts`").await;
        assert_eq!(store.load(p, Position::START, at(100), 100).await.unwrap(), []);
        for _ in 0..2 {
            store.apply(p, epoch, batch(1)).await.unwrap();
        }
        let loaded = store.load(p, Position::START, at(100), 100).await.unwrap();
        assert_eq!(loaded.len(), 20);
        assert!(loaded.iter().all(|task| task.definition.payload == payload));
    });
}
