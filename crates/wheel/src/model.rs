//! A model of the wheel, made of a `BTreeMap`, and a check that runs both side by side.
//!
//! After every operation, wheel and model must have the same timers; the check panics at the first
//! difference. The property tests below and `fuzz/fuzz_targets/wheel.rs` make the operations.

use std::collections::BTreeMap;

use crate::{TimerId, Wheel};

/// An operation on a wheel.
#[derive(Debug, Clone, Copy)]
pub enum Operation {
    /// Inserts a timer due `after` ticks after the wheel's time.
    Insert { after: u64 },
    /// Inserts a timer that was due `before` ticks before the wheel's time.
    InsertLate { before: u64 },
    /// Cancels one of all ids, live or stale.
    Cancel { nth: usize },
    /// Cancels one of the latest ids, so that slots lose most of their timers.
    CancelRecent { nth: usize },
    /// Advances by some ticks.
    Advance { by: u64 },
    /// Advances to the result of `next_due`.
    AdvanceToNext,
    /// Advances to a `now` before the wheel's time.
    StepBack { by: u64 },
    /// Cancels all timers.
    Clear,
}

impl Operation {
    /// Makes an operation of any three numbers. `magnitude` chooses how many bits of `amount` are
    /// used, so that small and huge spans are equally likely.
    pub fn from_numbers(kind: u8, magnitude: u8, amount: u64) -> Operation {
        let span = amount >> (magnitude % 64);
        let nth = usize::try_from(amount % (1 << 16)).unwrap_or(0);
        match kind % 32 {
            0..=11 => Operation::Insert { after: span },
            12 => Operation::InsertLate { before: span },
            13..=16 => Operation::Cancel { nth },
            17..=22 => Operation::CancelRecent { nth },
            23..=26 => Operation::Advance { by: span },
            27..=29 => Operation::AdvanceToNext,
            30 => Operation::StepBack { by: span },
            _ if amount.is_multiple_of(16) => Operation::Clear,
            _ => Operation::Advance { by: 1 },
        }
    }
}

/// Runs the operations on a wheel and on the model, then advances until no timer is left.
///
/// # Panics
///
/// If the two differ.
pub fn check(start: u64, operations: impl IntoIterator<Item = Operation>) {
    let mut both = WheelAndModel::new(start);
    for operation in operations {
        both.run(operation);
    }
    both.run_out();
}

/// A wheel and its model.
struct WheelAndModel {
    wheel: Wheel<u64>,
    /// Due time, then order of insertion, which is also the value.
    model: BTreeMap<(u64, u64), ()>,
    issued: Vec<(TimerId, (u64, u64))>,
    cancelled: usize,
}

impl WheelAndModel {
    fn new(start: u64) -> Self {
        let wheel = Wheel::new(start);
        WheelAndModel { wheel, model: BTreeMap::new(), issued: Vec::new(), cancelled: 0 }
    }

    fn run(&mut self, operation: Operation) {
        let time = self.wheel.time();
        match operation {
            Operation::Insert { after } => self.insert(time.saturating_add(after)),
            Operation::InsertLate { before } => self.insert(time.saturating_sub(before)),
            Operation::Cancel { nth } if !self.issued.is_empty() => {
                self.cancel(nth % self.issued.len());
            }
            Operation::CancelRecent { nth } if !self.issued.is_empty() => {
                let last = self.issued.len() - 1;
                self.cancel(last - nth % self.issued.len().min(16));
            }
            Operation::Cancel { .. } | Operation::CancelRecent { .. } => {}
            Operation::Advance { by } => self.advance(time.saturating_add(by)),
            Operation::AdvanceToNext => {
                if let Some(due) = self.wheel.next_due() {
                    self.advance(due);
                }
            }
            Operation::StepBack { by } => self.advance(time.saturating_sub(by)),
            Operation::Clear => {
                self.wheel.clear();
                self.model.clear();
            }
        }
        self.compare();
    }

    fn insert(&mut self, due: u64) {
        let value = self.issued.len() as u64;
        let id = self.wheel.insert(due, value).expect("the model is small");
        self.model.insert((due, value), ());
        self.issued.push((id, (due, value)));
    }

    fn cancel(&mut self, nth: usize) {
        let (id, key) = self.issued[nth];
        let want = self.model.remove(&key).map(|()| key.1);
        assert_eq!(self.wheel.cancel(id), want, "cancel of the timer due at {}", key.0);
        self.cancelled += usize::from(want.is_some());
    }

    fn advance(&mut self, now: u64) {
        let mut expired = Vec::new();
        self.wheel.advance(now, |due, value| expired.push((due, value)));
        for got in expired {
            let want = self.model.pop_first().map(|(key, ())| key);
            assert_eq!(Some(got), want, "expired at {now}");
            assert!(got.0 <= now, "{got:?} is early at {now}");
        }
        let left = self.model.first_key_value().map(|(key, ())| *key);
        assert!(left.is_none_or(|(due, _)| due > now), "{left:?} did not expire at {now}");
    }

    fn compare(&self) {
        assert_eq!(self.wheel.len(), self.model.len());
        assert_eq!(self.wheel.is_empty(), self.model.is_empty());
        let true_next = self.model.first_key_value().map(|((due, _), ())| *due);
        let next = self.wheel.next_due();
        assert_eq!(next.is_some(), true_next.is_some());
        assert!(next <= true_next, "would wake at {next:?}, after {true_next:?}");
        let near = true_next.is_some_and(|due| due >> 8 == self.wheel.time() >> 8);
        if self.cancelled == 0 || (near && true_next >= Some(self.wheel.time())) {
            assert_eq!(next, true_next, "exact when near or when nothing was cancelled");
        }
    }

    /// Advances from one `next_due` to the next, as the engine does, until no timer is left. Every
    /// wake-up must expire a timer or drop at least one that was cancelled.
    fn run_out(&mut self) {
        let wake_ups_max = self.model.len() + self.cancelled;
        let mut wake_ups = 0;
        while let Some(due) = self.wheel.next_due() {
            self.advance(due);
            self.compare();
            wake_ups += 1;
            let left = self.wheel.len();
            assert!(wake_ups <= wake_ups_max, "{wake_ups} wake-ups, {left} timers left");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Start times near every boundary between levels, and at both ends of time.
    fn starts() -> impl Strategy<Value = u64> {
        prop_oneof![
            (0u32..64, -300i64..300)
                .prop_map(|(bit, off)| (1u64 << bit).saturating_add_signed(off)),
            (0u64..600).prop_map(|off| u64::MAX - off),
            Just(1_700_000_000_000),
            any::<u64>(),
        ]
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let operation = (any::<u8>(), any::<u8>(), any::<u64>());
        prop::collection::vec(operation, 0..400).prop_map(|numbers| {
            let of = |(kind, magnitude, amount)| Operation::from_numbers(kind, magnitude, amount);
            numbers.into_iter().map(of).collect()
        })
    }

    /// Operations whose spans are within a few slots, so that slots fill and are swept.
    fn crowded_operations() -> impl Strategy<Value = Vec<Operation>> {
        let operation = (any::<u8>(), 48u8..64, any::<u64>());
        prop::collection::vec(operation, 0..2_000).prop_map(|numbers| {
            let of = |(kind, magnitude, amount)| match Operation::from_numbers(
                kind, magnitude, amount,
            ) {
                Operation::Advance { by } => Operation::Advance { by: by % 4 },
                Operation::AdvanceToNext => Operation::Insert { after: 700 },
                other => other,
            };
            numbers.into_iter().map(of).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

        #[test]
        fn a_wheel_agrees_with_its_model(start in starts(), operations in operations()) {
            check(start, operations);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn a_wheel_with_few_slots_in_use_agrees_with_its_model(
            start in starts(),
            operations in crowded_operations(),
        ) {
            check(start, operations);
        }
    }
}
