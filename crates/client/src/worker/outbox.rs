//! The outbox: settlements to send, and recent ones that may have to be sent again.
//!
//! A settlement is sent only to the run of the broker that issued its token. After a stream broke,
//! recent settlements are sent again on the next one, because they may not have arrived. A broker
//! reports a second one as `stale` and changes nothing.

use std::collections::VecDeque;

use punctual_proto::v1;

/// Acks, or extensions, in one message: enough that the cost of the message itself does not matter.
const ACKS_MAX: usize = 16_384;
/// Failures, or refusals, in one message: with reasons one megabyte of the four that gRPC servers
/// accept by default.
const FAILS_MAX: usize = 2_048;
/// Acks with results in one message: one megabyte.
const RESULTS_MAX: usize = 64;
/// Bytes of a result that count as one more settlement, so that memory is bounded.
const RESULT_WEIGHT_BYTES: usize = 256;
/// Sent settlements that are kept: more than the sockets between a worker and its broker hold.
const SENT_MAX: usize = 32_768;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    pending: v1::Settle,
    sent: VecDeque<v1::Settle>,
    sent_count: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        count(&self.pending) == 0
    }

    /// Whether no further settlement should be added until some are sent.
    pub(super) fn is_full(&self) -> bool {
        count(&self.pending) >= ACKS_MAX
    }

    pub(super) fn add(&mut self, mut settle: v1::Settle) {
        if self.is_empty() {
            self.pending = settle;
            return;
        }
        self.pending.ack.append(&mut settle.ack);
        self.pending.fail.append(&mut settle.fail);
        self.pending.refuse.append(&mut settle.refuse);
        self.pending.extend.append(&mut settle.extend);
        self.pending.ack_with_result.append(&mut settle.ack_with_result);
    }

    /// Takes the settlements of the next message, as many as fit.
    pub(super) fn take(&mut self) -> v1::Settle {
        let settle = v1::Settle {
            ack: first(&mut self.pending.ack, ACKS_MAX),
            fail: first(&mut self.pending.fail, FAILS_MAX),
            refuse: first(&mut self.pending.refuse, FAILS_MAX),
            extend: first(&mut self.pending.extend, ACKS_MAX),
            ack_with_result: first(&mut self.pending.ack_with_result, RESULTS_MAX),
        };
        let kept = v1::Settle { extend: Vec::new(), ..settle.clone() };
        self.sent_count += count(&kept);
        self.sent.push_back(kept);
        while self.sent_count > SENT_MAX {
            let Some(oldest) = self.sent.pop_front() else { break };
            self.sent_count -= count(&oldest);
        }
        settle
    }

    /// Schedules recent settlements to be sent again, on a new stream to the same run of the
    /// broker.
    pub(super) fn resend(&mut self) {
        let later = std::mem::take(&mut self.pending);
        self.sent_count = 0;
        for settle in std::mem::take(&mut self.sent) {
            self.add(settle);
        }
        self.add(later);
    }

    /// Drops everything, because another run of the broker does not know the tokens. Returns how
    /// many settlements were never sent.
    pub(super) fn reset(&mut self) -> usize {
        let unsent = settled(&self.pending);
        *self = Self::default();
        unsent
    }

    /// Drops sent settlements: the stream ended regularly, so the broker has read all of them.
    pub(super) fn confirm_all(&mut self) {
        self.sent.clear();
        self.sent_count = 0;
    }

    /// Whether a settlement may not have arrived.
    pub(super) fn has_unconfirmed(&self) -> bool {
        self.sent_count > 0 || settled(&self.pending) > 0
    }

    /// How many settlements were never sent.
    pub(super) fn unsent(&self) -> usize {
        settled(&self.pending)
    }
}

fn first<T>(all: &mut Vec<T>, max: usize) -> Vec<T> {
    if all.len() <= max { std::mem::take(all) } else { all.drain(..max).collect() }
}

/// What a message counts for the bounds: long results count several times.
fn count(settle: &v1::Settle) -> usize {
    let results = settle.ack_with_result.iter();
    let weight: usize = results.map(|ack| ack.result.len() / RESULT_WEIGHT_BYTES).sum();
    settled(settle) + settle.extend.len() + weight
}

fn settled(settle: &v1::Settle) -> usize {
    let acks = settle.ack.len() + settle.ack_with_result.len();
    acks + settle.fail.len() + settle.refuse.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acks(tokens: impl IntoIterator<Item = u64>) -> v1::Settle {
        v1::Settle { ack: tokens.into_iter().collect(), ..v1::Settle::default() }
    }

    #[test]
    fn settlements_of_a_broken_stream_are_sent_again_before_new_ones() {
        let mut outbox = Outbox::default();
        outbox.add(acks([1, 2]));
        assert_eq!(outbox.take().ack, [1, 2]);
        outbox.add(acks([3]));
        outbox.resend();
        assert_eq!(outbox.take().ack, [1, 2, 3]);
        outbox.confirm_all();
        assert!(!outbox.has_unconfirmed());
    }

    #[test]
    fn another_run_of_the_broker_gets_no_settlements_of_the_previous_one() {
        let mut outbox = Outbox::default();
        outbox.add(acks([1]));
        outbox.take();
        outbox.add(acks([2, 3]));
        assert_eq!(outbox.reset(), 2);
        assert!(outbox.is_empty() && !outbox.has_unconfirmed());
    }

    #[test]
    fn messages_and_memory_are_bounded() {
        let mut outbox = Outbox::default();
        outbox.add(acks(0..100_000));
        assert!(outbox.is_full());
        let mut sent = Vec::new();
        while !outbox.is_empty() {
            let settle = outbox.take();
            assert!(settle.ack.len() <= ACKS_MAX);
            sent.extend(settle.ack);
        }
        assert!(sent.into_iter().eq(0..100_000));
        assert!(outbox.sent_count <= SENT_MAX);
    }

    #[test]
    fn long_results_are_sent_in_small_messages_and_few_are_kept() {
        let mut outbox = Outbox::default();
        for token in 0..1000 {
            let result = vec![b' '; 16 * 1024].into();
            let ack_with_result = vec![v1::AckWithResult { token, result }];
            outbox.add(v1::Settle { ack_with_result, ..v1::Settle::default() });
        }
        assert_eq!((outbox.is_full(), outbox.unsent()), (true, 1000));
        let mut sent = Vec::new();
        while !outbox.is_empty() {
            let settle = outbox.take();
            assert!(settle.ack_with_result.len() <= RESULTS_MAX);
            sent.extend(settle.ack_with_result.into_iter().map(|ack| ack.token));
        }
        assert!(sent.into_iter().eq(0..1000));
        assert!(outbox.sent.iter().map(settled).sum::<usize>() < 600);
    }
}
