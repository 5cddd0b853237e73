//! The permit to send one delivery, shared by the owner that decides and the courier that sends.
//!
//! A delivery may wait in its courier for a lookup, a connection or a worker. Until its first byte
//! leaves, the owner can recall it, because its task is cancelled, replaced, touched or paused;
//! then it is never sent. One atomic step decides which of the two comes first. The lease of the
//! owner is checked in the same place, so no byte leaves after its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use punctual_core::Timestamp;
use tokio::sync::Notify;

use crate::ownership::lease::LeaseEnd;

/// The permit to send one delivery. Clones share one state.
#[derive(Debug, Clone)]
pub struct SendPermit(Arc<PermitState>);

#[derive(Debug)]
struct PermitState {
    stage: AtomicU8,
    /// When the first byte was to leave, in milliseconds; has a meaning once it was sent.
    sent_at: AtomicU64,
    lease_end: LeaseEnd,
    /// From this time on the task is too late to be sent.
    expires_at: Option<Timestamp>,
    recalled: Notify,
}

/// Nothing was sent.
const WAITING: u8 = 0;
/// The first byte may have left.
const SENT: u8 = 1;
/// The courier has given up, or has reported: nothing was sent, and nothing will be.
const GIVEN_UP: u8 = 2;
/// The owner has recalled it: nothing was sent, and nothing will be.
const RECALLED: u8 = 3;

/// Why a delivery must not be sent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotSendable {
    /// The owner has recalled it.
    #[error("the task was cancelled, replaced, touched or paused before it was sent")]
    Recalled,
    /// Another broker may own the partition.
    #[error("the lease of the partition is over")]
    LeaseOver,
    /// The task has expired; its owner makes it a dead letter.
    #[error("the task expired before it was sent")]
    Expired,
}

impl SendPermit {
    pub(crate) fn new(lease_end: LeaseEnd, expires_at: Option<Timestamp>) -> Self {
        let (stage, sent_at) = (AtomicU8::new(WAITING), AtomicU64::new(0));
        let recalled = Notify::new();
        Self(Arc::new(PermitState { stage, sent_at, lease_end, expires_at, recalled }))
    }

    /// A permit without an owner, for tests of couriers.
    #[doc(hidden)]
    #[must_use]
    pub fn until(lease_end: LeaseEnd) -> Self {
        Self::new(lease_end, None)
    }

    /// Whether the delivery may still be sent at `now`. [`send`](Self::send) decides.
    pub fn check(&self, now: Timestamp) -> Result<(), NotSendable> {
        if self.is_recalled() {
            return Err(NotSendable::Recalled);
        }
        if self.0.lease_end.is_over(now) {
            return Err(NotSendable::LeaseOver);
        }
        match self.0.expires_at.is_some_and(|expires_at| expires_at <= now) {
            true => Err(NotSendable::Expired),
            false => Ok(()),
        }
    }

    /// Called by a courier at the moment at which the first byte is to leave. From then on the
    /// delivery cannot be recalled.
    pub fn send(&self, now: Timestamp) -> Result<(), NotSendable> {
        self.check(now)?;
        let PermitState { stage, sent_at, .. } = &*self.0;
        // The rest of a delivery that has begun leaves later.
        if stage.load(Ordering::Acquire) == WAITING {
            sent_at.store(now.as_millis(), Ordering::Relaxed);
        }
        match stage.compare_exchange(WAITING, SENT, Ordering::AcqRel, Ordering::Acquire) {
            Err(RECALLED | GIVEN_UP) => Err(NotSendable::Recalled),
            _ => Ok(()),
        }
    }

    /// Called by a courier if it turns out that nothing has left after [`send`](Self::send).
    pub fn unsend(&self) {
        let stage = &self.0.stage;
        // If it waits already, there is nothing to do.
        let _ = stage.compare_exchange(SENT, WAITING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Called by a courier that stops before it has sent anything. Returns whether the delivery was
    /// not sent and will not be.
    pub fn give_up(&self) -> bool {
        let stage = &self.0.stage;
        let given_up =
            stage.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
        given_up != Err(SENT)
    }

    /// Recalls the delivery. Returns whether it was not sent and will not be.
    pub(crate) fn recall(&self) -> bool {
        let unless_sent = |stage| (stage != SENT).then_some(RECALLED);
        match self.0.stage.fetch_update(Ordering::AcqRel, Ordering::Acquire, unless_sent) {
            Ok(_) => {
                self.0.recalled.notify_one();
                true
            }
            Err(_) => false,
        }
    }

    /// Whether the owner has recalled the delivery.
    #[must_use]
    pub fn is_recalled(&self) -> bool {
        self.0.stage.load(Ordering::Acquire) == RECALLED
    }

    /// Called by the owner when the courier has reported that the delivery was not sent, recalled
    /// or not.
    pub(crate) fn close(&self) {
        let unless_sent = |stage| (stage != SENT).then_some(GIVEN_UP);
        // If it was sent, it stays so.
        let _ = self.0.stage.fetch_update(Ordering::AcqRel, Ordering::Acquire, unless_sent);
    }

    /// Returns when the first byte left; `None` if nothing was sent.
    pub(crate) fn sent_at(&self) -> Option<Timestamp> {
        let sent = self.0.stage.load(Ordering::Acquire) == SENT;
        sent.then(|| Timestamp::from_millis(self.0.sent_at.load(Ordering::Relaxed)))
    }

    /// Whether nothing was sent yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.stage.load(Ordering::Acquire) == WAITING
    }

    /// Returns when the delivery is recalled, so that a courier stops waiting for its sake. At most
    /// one caller waits.
    pub async fn recalled(&self) {
        self.0.recalled.notified().await;
    }

    /// Returns when the lease of the owner ends, as it is now.
    #[must_use]
    pub fn lease_end(&self) -> Timestamp {
        self.0.lease_end.get()
    }
}

/// Two permits are equal if they are of the same delivery.
impl PartialEq for SendPermit {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SendPermit {}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::EPOCH;

    fn permit() -> SendPermit {
        SendPermit::until(LeaseEnd::new(Timestamp::MAX))
    }

    #[test]
    fn a_delivery_is_sent_or_recalled_and_never_both() {
        let sent = permit();
        assert_eq!(sent.send(NOW), Ok(()));
        assert!(!sent.recall());
        let recalled = permit();
        assert!(recalled.recall());
        assert_eq!(recalled.send(NOW), Err(NotSendable::Recalled));
        assert!(recalled.recall(), "as before");
    }

    #[test]
    fn a_permit_says_when_the_first_byte_left() {
        let at = Timestamp::from_millis;
        let permit = permit();
        assert_eq!(permit.sent_at(), None);
        permit.send(at(5)).unwrap();
        permit.send(at(6)).unwrap();
        assert_eq!(permit.sent_at(), Some(at(5)), "the rest left later");
        permit.unsend();
        assert_eq!(permit.sent_at(), None);
        permit.send(at(7)).unwrap();
        permit.close();
        assert_eq!(permit.sent_at(), Some(at(7)));
    }

    #[test]
    fn a_courier_that_gives_up_sends_nothing_afterwards() {
        let waiting = permit();
        assert!(waiting.give_up());
        assert_eq!(waiting.send(NOW), Err(NotSendable::Recalled));
        assert!(!waiting.is_recalled(), "the owner has not recalled it");
        assert!(waiting.recall());
        let sent = permit();
        sent.send(NOW).unwrap();
        assert!(!sent.give_up());
    }

    #[test]
    fn a_delivery_that_was_not_sent_after_all_can_be_recalled() {
        let permit = permit();
        permit.send(NOW).unwrap();
        permit.unsend();
        assert!(permit.is_waiting());
        assert!(permit.recall());
        permit.unsend();
        assert!(permit.is_recalled());
    }

    #[test]
    fn nothing_is_sent_after_the_lease_or_when_the_task_has_expired() {
        let at = Timestamp::from_millis;
        let permit = SendPermit::new(LeaseEnd::new(at(20)), Some(at(10)));
        assert_eq!(permit.check(at(9)), Ok(()));
        assert_eq!(permit.send(at(10)), Err(NotSendable::Expired));
        assert_eq!(permit.send(at(20)), Err(NotSendable::LeaseOver));
        assert!(permit.is_waiting());
    }
}
