//! The membership: who is there, and what their leader proposes.

use std::time::Duration;

use punctual_core::{
    Assignment, BrokerId, Epoch, Heartbeat, Lease, PARTITIONS_MAX, PartitionId, Seat,
};

use super::StoreUnderTest;
use super::fixtures::{NOW, TTL, at, broker, epoch, partition};
use crate::LeaseStore;
use crate::error::StoreError;
use crate::membership_store::{Members, MembershipStore};

fn presence(name: &str) -> Heartbeat {
    Heartbeat { broker: broker(name), holds: Vec::new(), leaving: false, ahead_ms: None }
}

async fn beat<S: MembershipStore>(store: &S, presence: &Heartbeat) -> Members {
    store.heartbeat(presence, TTL).await.expect("anybody may say that it is there")
}

fn names(roll: &Members) -> Vec<&str> {
    roll.present.iter().map(|attendance| attendance.presence.broker.as_str()).collect()
}

fn all_to(name: &str) -> Assignment {
    Assignment { owners: vec![Some(broker(name)), None, Some(broker(name)), Some(broker(name))] }
}

async fn lead<S: LeaseStore>(store: &S, name: &str) -> Lease {
    store.acquire(Seat::Leader, &broker(name), TTL, NOW).await.expect("the seat is free")
}

fn assert_refused(answer: &Result<(), StoreError>) {
    let held = matches!(answer, Err(StoreError::Held { seat: Seat::Leader }));
    assert!(held, "was answered {answer:?}");
}

pub async fn only_brokers_that_sent_a_heartbeat_are_members<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let said = Heartbeat {
        broker: broker("a:1"),
        holds: vec![(partition(0), epoch(7)), (partition(3), Epoch::MAX)],
        leaving: true,
        ahead_ms: Some(-250),
    };
    let roll = beat(&store, &said).await;
    assert_eq!(roll.present.len(), 1);
    assert_eq!(roll.present[0].presence, said);
    assert!(roll.present[0].age < Duration::from_secs(5), "it has just said so");
    assert_eq!((roll.leader, roll.led, roll.assignment), (None, false, None));
}

pub async fn members_are_ordered_by_broker_id<S: StoreUnderTest<Store: MembershipStore>>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut last = None;
    for name in ["b:1", "c:10", "a:9", "c:9"] {
        let roll = beat(&store, &presence(name)).await;
        assert!(last.is_none_or(|last| last <= roll.at), "its clock does not go back");
        last = Some(roll.at);
    }
    let roll = beat(&store, &presence("b:1")).await;
    assert_eq!(names(&roll), ["a:9", "b:1", "c:10", "c:9"]);
}

pub async fn the_latest_heartbeat_of_a_broker_replaces_the_earlier_one<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let first =
        Heartbeat { holds: vec![(partition(1), epoch(1))], ahead_ms: Some(3), ..presence("a:1") };
    beat(&store, &first).await;
    let second = Heartbeat { leaving: true, ..presence("a:1") };
    beat(&store, &second).await;
    let roll = beat(&store, &presence("b:1")).await;
    assert_eq!(roll.present[0].presence, second);
}

pub async fn a_member_ages_and_expires_after_its_ttl<S: StoreUnderTest<Store: MembershipStore>>(
    under_test: &S,
) {
    let store = under_test.open().await;
    beat(&store, &presence("a:1")).await;
    under_test.pass(&store, TTL / 2).await;
    let roll = beat(&store, &presence("b:1")).await;
    assert_eq!(names(&roll), ["a:1", "b:1"]);
    let ages = [roll.present[0].age, roll.present[1].age];
    assert!((TTL / 2..TTL).contains(&ages[0]) && ages[1] < TTL / 2, "{ages:?}");
    under_test.pass(&store, TTL / 2).await;
    let roll = beat(&store, &presence("c:1")).await;
    assert_eq!(names(&roll), ["b:1", "c:1"], "and then it is over");
    beat(&store, &presence("b:1")).await;
    under_test.pass(&store, TTL * 3 / 4).await;
    let roll = beat(&store, &presence("d:1")).await;
    assert_eq!(names(&roll), ["b:1", "c:1", "d:1"], "each lasts from its last word");
}

pub async fn a_broker_that_left_is_no_member_until_its_next_heartbeat<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    store.leave(&broker("a:1")).await.expect("nothing happens");
    beat(&store, &presence("a:1")).await;
    beat(&store, &presence("b:1")).await;
    store.leave(&broker("a:1")).await.expect("anybody may leave");
    assert_eq!(names(&beat(&store, &presence("b:1")).await), ["b:1"]);
    assert_eq!(names(&beat(&store, &presence("a:1")).await), ["a:1", "b:1"]);
}

pub async fn members_name_the_leader_and_whether_its_lease_is_valid<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let lease = lead(&store, "b:1").await;
    let roll = beat(&store, &presence("a:1")).await;
    assert_eq!((roll.leader.as_ref(), roll.led), (Some(&lease), true));
    under_test.pass(&store, TTL).await;
    let roll = beat(&store, &presence("a:1")).await;
    assert_eq!((roll.leader.as_ref(), roll.led), (Some(&lease), false), "its lease is over");
    let lease = store.renew(&lease, TTL, at(10)).await.expect("nobody took the seat");
    assert!(beat(&store, &presence("a:1")).await.led);
    store.release(&lease).await.expect("is the holder");
    let roll = beat(&store, &presence("a:1")).await;
    assert_eq!(roll.leader.map(|last| last.epoch), Some(lease.epoch));
    assert!(!roll.led, "it gave the seat back");
}

pub async fn only_the_current_leader_can_propose<S: StoreUnderTest<Store: MembershipStore>>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let forged =
        Lease { seat: Seat::Leader, broker: broker("a:1"), epoch: Epoch::NONE, until: at(9) };
    assert_refused(&store.propose(&forged, &all_to("a:1")).await);
    let seat = Seat::Partition(partition(0));
    let other = store.acquire(seat, &broker("a:1"), TTL, NOW).await.expect("the seat is free");
    let old = lead(&store, "a:1").await;
    assert_refused(&store.propose(&other, &all_to("a:1")).await);
    store.release(&old).await.expect("is the holder");
    let new = lead(&store, "b:1").await;
    assert_refused(&store.propose(&old, &all_to("a:1")).await);
    assert_eq!(beat(&store, &presence("a:1")).await.assignment, None, "nothing was changed");
    store.propose(&new, &all_to("b:1")).await.expect("leads");
    assert_eq!(beat(&store, &presence("a:1")).await.assignment, Some(all_to("b:1")));
}

pub async fn the_latest_proposal_counts_and_outlives_its_leader<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let lease = lead(&store, "a:1").await;
    for name in ["a:1", "b:1", "c:1"] {
        store.propose(&lease, &all_to(name)).await.expect("leads");
    }
    under_test.pass(&store, TTL * 3).await;
    assert_eq!(beat(&store, &presence("b:1")).await.assignment, Some(all_to("c:1")));
    let nobody = Assignment { owners: vec![None; 4] };
    store.propose(&lease, &nobody).await.expect("nobody took the seat");
    assert_eq!(beat(&store, &presence("b:1")).await.assignment, Some(nobody));
}

pub async fn the_largest_heartbeat_and_assignment_are_read_back_unchanged<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let all = || (0..PARTITIONS_MAX).filter_map(PartitionId::new);
    let said = Heartbeat {
        broker: broker("[2001:db8::1]:7000"),
        holds: all().zip((1..).filter_map(Epoch::new)).collect(),
        leaving: false,
        ahead_ms: Some(i64::MAX),
    };
    assert_eq!(beat(&store, &said).await.present[0].presence, said);
    let owner = |place: PartitionId| {
        let name = format!("broker-{}.example:7000", place.get() % 100);
        (!place.get().is_multiple_of(7)).then(|| BrokerId::new(&name))
    };
    let assignment = Assignment { owners: all().map(owner).collect() };
    let lease = lead(&store, "a:1").await;
    store.propose(&lease, &assignment).await.expect("leads");
    assert_eq!(beat(&store, &said).await.assignment, Some(assignment));
}
