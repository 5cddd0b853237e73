//! Leases: which broker holds a seat, until when, and under which epoch.

use std::time::Duration;

use punctual_core::{Epoch, Lease, Seat, Timestamp};

use crate::LeaseStore;
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{NOW, TTL, at, broker, partition};
use crate::error::StoreError;

fn seats() -> [Seat; 3] {
    [Seat::Leader, Seat::Partition(partition(0)), Seat::Partition(partition(3))]
}

async fn acquire<S: LeaseStore>(store: &S, seat: Seat, name: &str, now: Timestamp) -> Lease {
    let lease = store.acquire(seat, &broker(name), TTL, now).await;
    lease.expect("the seat is free")
}

async fn assert_held<S: LeaseStore>(store: &S, seat: Seat, name: &str, now: Timestamp) {
    match store.acquire(seat, &broker(name), TTL, now).await {
        Err(StoreError::Held { seat: held }) => assert_eq!(held, seat),
        other => unreachable!("{seat} must be held, {name} returned {other:?}"),
    }
}

fn assert_refused(answer: &Result<Lease, StoreError>) {
    let held = matches!(answer, Err(StoreError::Held { .. }));
    assert!(held, "returned {answer:?}");
}

pub async fn an_unused_seat_has_no_holder<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    for seat in seats() {
        assert_eq!(store.holder(seat).await.expect("reads need no lease"), None);
    }
}

pub async fn a_free_seat_is_acquired_from_now_for_its_ttl<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    for seat in seats() {
        let lease = acquire(&store, seat, "a:1", NOW).await;
        assert_eq!(lease.seat, seat);
        assert_eq!(lease.broker, broker("a:1"));
        assert!(lease.epoch > Epoch::NONE);
        assert_eq!(lease.until, NOW.after(TTL));
        let holder = store.holder(seat).await.expect("reads need no lease");
        assert_eq!(holder, Some(lease));
    }
}

pub async fn a_seat_has_one_holder_until_its_lease_expires<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    for seat in seats() {
        let lease = acquire(&store, seat, "a:1", NOW).await;
        let last = Timestamp::from_millis(lease.until.as_millis() - 1);
        for now in [NOW, last] {
            assert_held(&store, seat, "b:1", now).await;
        }
        let holder = store.holder(seat).await.expect("reads need no lease");
        assert_eq!(holder.as_ref(), Some(&lease), "a refused call changes nothing");
        under_test.pass(&store, TTL).await;
        let next = acquire(&store, seat, "b:1", lease.until).await;
        assert!(next.epoch > lease.epoch);
        assert_held(&store, seat, "a:1", lease.until).await;
    }
}

pub async fn epochs_grow_even_for_the_same_broker<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let seat = Seat::Partition(partition(0));
    let mut last = Epoch::NONE;
    // While the broker holds the seat, and after its lease has expired.
    for second in [0, 0, 1, 5, 1000] {
        under_test.pass(&store, Duration::from_secs(second)).await;
        let lease = acquire(&store, seat, "a:1", at(second)).await;
        assert!(lease.epoch > last, "{} after {last}", lease.epoch);
        assert_eq!(lease.until, at(second).after(TTL));
        last = lease.epoch;
    }
}

pub async fn renewing_extends_the_lease_and_keeps_its_epoch<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let seat = Seat::Partition(partition(0));
    let lease = acquire(&store, seat, "a:1", NOW).await;
    for second in [0, 3, 9] {
        let now = at(second);
        let renewed = store.renew(&lease, TTL, now).await.expect("the lease is current");
        let want = Lease { until: now.after(TTL), ..lease.clone() };
        assert_eq!(renewed, want);
        let holder = store.holder(seat).await.expect("reads need no lease");
        assert_eq!(holder, Some(renewed));
    }
    assert_held(&store, seat, "b:1", at(15)).await;
}

pub async fn an_expired_lease_can_be_renewed_until_another_broker_acquires_the_seat<
    S: StoreUnderTest,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let seat = Seat::Leader;
    let lease = acquire(&store, seat, "a:1", NOW).await;
    under_test.pass(&store, Duration::from_secs(100)).await;
    let renewed = store.renew(&lease, TTL, at(100)).await.expect("the seat was not acquired since");
    assert_eq!((renewed.epoch, renewed.until), (lease.epoch, at(110)));
    assert_held(&store, seat, "b:1", at(105)).await;
}

pub async fn renewing_is_refused_after_another_broker_acquired_the_seat<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let seat = Seat::Partition(partition(3));
    let lease = acquire(&store, seat, "a:1", NOW).await;
    under_test.pass(&store, TTL).await;
    let taken = acquire(&store, seat, "b:1", at(10)).await;
    for now in [NOW, at(11), at(1000)] {
        assert_refused(&store.renew(&lease, TTL, now).await);
    }
    let holder = store.holder(seat).await.expect("reads need no lease");
    assert_eq!(holder, Some(taken));
}

pub async fn renewing_an_earlier_epoch_is_refused_even_for_the_same_broker<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let seat = Seat::Partition(partition(0));
    let old = acquire(&store, seat, "a:1", NOW).await;
    let new = acquire(&store, seat, "a:1", NOW).await;
    assert_refused(&store.renew(&old, TTL, at(1)).await);
    store.renew(&new, TTL, at(1)).await.expect("the lease is current");
}

pub async fn a_lease_that_was_never_granted_cannot_be_renewed<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    for (seat, epoch) in [(Seat::Leader, Epoch::NONE), (Seat::Leader, Epoch::MAX)] {
        let forged = Lease { seat, broker: broker("a:1"), epoch, until: at(99) };
        assert_refused(&store.renew(&forged, TTL, NOW).await);
        store.release(&forged).await.expect("does nothing");
        assert_eq!(store.holder(seat).await.expect("reads need no lease"), None);
    }
}

pub async fn a_released_seat_can_be_acquired_by_others<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    for seat in seats() {
        let lease = acquire(&store, seat, "a:1", NOW).await;
        store.release(&lease).await.expect("the lease is current");
        let last = store.holder(seat).await.expect("reads need no lease");
        let last = last.expect("the last lease is known");
        assert_eq!((last.epoch, &last.broker), (lease.epoch, &lease.broker));
        assert_eq!(last.until, Timestamp::EPOCH, "the lease was released");
        let next = acquire(&store, seat, "b:1", NOW).await;
        assert!(next.epoch > lease.epoch);
    }
}

pub async fn releasing_an_old_lease_does_not_free_the_seat<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let seat = Seat::Partition(partition(0));
    let lease = acquire(&store, seat, "a:1", NOW).await;
    under_test.pass(&store, TTL).await;
    let taken = acquire(&store, seat, "b:1", at(10)).await;
    store.release(&lease).await.expect("does nothing");
    assert_held(&store, seat, "a:1", at(11)).await;
    let holder = store.holder(seat).await.expect("reads need no lease");
    assert_eq!(holder, Some(taken));
}

pub async fn seats_are_independent<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let [leader, first, other] = seats();
    let held = acquire(&store, leader, "a:1", NOW).await;
    acquire(&store, first, "b:1", NOW).await;
    acquire(&store, first, "b:1", NOW).await;
    let lease = acquire(&store, other, "c:1", NOW).await;
    store.release(&lease).await.expect("the lease is current");
    let holder = store.holder(leader).await.expect("reads need no lease");
    assert_eq!(holder, Some(held));
    assert_held(&store, first, "a:1", NOW).await;
    acquire(&store, other, "a:1", NOW).await;
}
