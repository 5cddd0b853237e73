//! Membership: which brokers are alive, and what their leader proposes.

use std::time::Duration;

use punctual_core::{
    Assignment, BrokerId, Epoch, Heartbeat, Lease, PARTITIONS_MAX, PartitionId, Seat,
};

use crate::LeaseStore;
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{NOW, TTL, at, broker, epoch, partition};
use crate::error::StoreError;
use crate::membership_store::{Members, MembershipStore};

fn idle(name: &str) -> Heartbeat {
    Heartbeat { broker: broker(name), holds: Vec::new(), leaving: false, ahead_ms: None }
}

async fn beat<S: MembershipStore>(store: &S, heartbeat: &Heartbeat) -> Members {
    store.heartbeat(heartbeat, TTL).await.expect("every broker may send heartbeats")
}

fn names(members: &Members) -> Vec<&str> {
    members.present.iter().map(|member| member.heartbeat.broker.as_str()).collect()
}

fn all_to(name: &str) -> Assignment {
    Assignment { owners: vec![Some(broker(name)), None, Some(broker(name)), Some(broker(name))] }
}

async fn lead<S: LeaseStore>(store: &S, name: &str) -> Lease {
    store.acquire(Seat::Leader, &broker(name), TTL, NOW).await.expect("the seat is free")
}

fn assert_refused(answer: &Result<(), StoreError>) {
    let held = matches!(answer, Err(StoreError::Held { seat: Seat::Leader }));
    assert!(held, "returned {answer:?}");
}

pub async fn only_brokers_that_sent_a_heartbeat_are_members<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let heartbeat = Heartbeat {
        broker: broker("a:1"),
        holds: vec![(partition(0), epoch(7)), (partition(3), Epoch::MAX)],
        leaving: true,
        ahead_ms: Some(-250),
    };
    let members = beat(&store, &heartbeat).await;
    assert_eq!(members.present.len(), 1);
    assert_eq!(members.present[0].heartbeat, heartbeat);
    assert!(members.present[0].age < Duration::from_secs(5), "the heartbeat is new");
    assert_eq!((members.leader, members.led, members.assignment), (None, false, None));
}

pub async fn members_are_ordered_by_broker_id<S: StoreUnderTest<Store: MembershipStore>>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut last = None;
    for name in ["b:1", "c:10", "a:9", "c:9"] {
        let members = beat(&store, &idle(name)).await;
        assert!(
            last.is_none_or(|last| last <= members.at),
            "the clock of the store does not go back"
        );
        last = Some(members.at);
    }
    let members = beat(&store, &idle("b:1")).await;
    assert_eq!(names(&members), ["a:9", "b:1", "c:10", "c:9"]);
}

pub async fn the_latest_heartbeat_of_a_broker_replaces_the_earlier_one<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let first =
        Heartbeat { holds: vec![(partition(1), epoch(1))], ahead_ms: Some(3), ..idle("a:1") };
    beat(&store, &first).await;
    let second = Heartbeat { leaving: true, ..idle("a:1") };
    beat(&store, &second).await;
    let members = beat(&store, &idle("b:1")).await;
    assert_eq!(members.present[0].heartbeat, second);
}

pub async fn a_member_ages_and_expires_after_its_ttl<S: StoreUnderTest<Store: MembershipStore>>(
    under_test: &S,
) {
    let store = under_test.open().await;
    beat(&store, &idle("a:1")).await;
    under_test.pass(&store, TTL / 2).await;
    let members = beat(&store, &idle("b:1")).await;
    assert_eq!(names(&members), ["a:1", "b:1"]);
    let ages = [members.present[0].age, members.present[1].age];
    assert!((TTL / 2..TTL).contains(&ages[0]) && ages[1] < TTL / 2, "{ages:?}");
    under_test.pass(&store, TTL / 2).await;
    let members = beat(&store, &idle("c:1")).await;
    assert_eq!(names(&members), ["b:1", "c:1"], "the first heartbeat has expired");
    beat(&store, &idle("b:1")).await;
    under_test.pass(&store, TTL * 3 / 4).await;
    let members = beat(&store, &idle("d:1")).await;
    assert_eq!(names(&members), ["b:1", "c:1", "d:1"], "each expires by its latest heartbeat");
}

pub async fn a_broker_that_left_is_no_member_until_its_next_heartbeat<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    store.leave(&broker("a:1")).await.expect("does nothing");
    beat(&store, &idle("a:1")).await;
    beat(&store, &idle("b:1")).await;
    store.leave(&broker("a:1")).await.expect("reads need no lease");
    assert_eq!(names(&beat(&store, &idle("b:1")).await), ["b:1"]);
    assert_eq!(names(&beat(&store, &idle("a:1")).await), ["a:1", "b:1"]);
}

pub async fn members_name_the_leader_and_whether_its_lease_is_valid<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let lease = lead(&store, "b:1").await;
    let members = beat(&store, &idle("a:1")).await;
    assert_eq!((members.leader.as_ref(), members.led), (Some(&lease), true));
    under_test.pass(&store, TTL).await;
    let members = beat(&store, &idle("a:1")).await;
    assert_eq!(
        (members.leader.as_ref(), members.led),
        (Some(&lease), false),
        "the lease has expired"
    );
    let lease = store.renew(&lease, TTL, at(10)).await.expect("the seat was not acquired since");
    assert!(beat(&store, &idle("a:1")).await.led);
    store.release(&lease).await.expect("the lease is current");
    let members = beat(&store, &idle("a:1")).await;
    assert_eq!(members.leader.map(|last| last.epoch), Some(lease.epoch));
    assert!(!members.led, "the lease was released");
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
    store.release(&old).await.expect("the lease is current");
    let new = lead(&store, "b:1").await;
    assert_refused(&store.propose(&old, &all_to("a:1")).await);
    assert_eq!(beat(&store, &idle("a:1")).await.assignment, None, "nothing changed");
    store.propose(&new, &all_to("b:1")).await.expect("the lease is current");
    assert_eq!(beat(&store, &idle("a:1")).await.assignment, Some(all_to("b:1")));
}

pub async fn the_latest_proposal_counts_and_outlives_its_leader<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let lease = lead(&store, "a:1").await;
    for name in ["a:1", "b:1", "c:1"] {
        store.propose(&lease, &all_to(name)).await.expect("the lease is current");
    }
    under_test.pass(&store, TTL * 3).await;
    assert_eq!(beat(&store, &idle("b:1")).await.assignment, Some(all_to("c:1")));
    let unowned = Assignment { owners: vec![None; 4] };
    store.propose(&lease, &unowned).await.expect("the seat was not acquired since");
    assert_eq!(beat(&store, &idle("b:1")).await.assignment, Some(unowned));
}

pub async fn the_largest_heartbeat_and_assignment_are_read_back_unchanged<
    S: StoreUnderTest<Store: MembershipStore>,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let all = || (0..PARTITIONS_MAX).filter_map(PartitionId::new);
    let heartbeat = Heartbeat {
        broker: broker("[2001:db8::1]:7000"),
        holds: all().zip((1..).filter_map(Epoch::new)).collect(),
        leaving: false,
        ahead_ms: Some(i64::MAX),
    };
    assert_eq!(beat(&store, &heartbeat).await.present[0].heartbeat, heartbeat);
    let owner = |partition: PartitionId| {
        let name = format!("broker-{}.example:7000", partition.get() % 100);
        (!partition.get().is_multiple_of(7)).then(|| BrokerId::new(&name))
    };
    let assignment = Assignment { owners: all().map(owner).collect() };
    let lease = lead(&store, "a:1").await;
    store.propose(&lease, &assignment).await.expect("the lease is current");
    assert_eq!(beat(&store, &heartbeat).await.assignment, Some(assignment));
}
