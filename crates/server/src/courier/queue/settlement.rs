//! What a worker receives for a delivery, and what it reports back.

use std::time::Duration;

use bytes::Bytes;
use punctual_core::{Answer, Namespace, Queue, RESULT_BYTES_MAX, Reason, Target};
use punctual_engine::Delivery;
use serde::de::IgnoredAny;

use super::token::LeaseToken;
use crate::task_form::check_json;

/// A delivery that is leased to a worker.
#[derive(Debug)]
pub(crate) struct Leased {
    pub(crate) token: LeaseToken,
    pub(crate) delivery: Delivery,
    /// How long the worker may take.
    pub(crate) lease: Duration,
}

/// What a worker reports of a delivery.
#[derive(Debug)]
pub(crate) enum Settlement {
    Ack,
    /// The worker sends a result, which the history keeps.
    AckWith {
        result: WorkerResult,
    },
    Fail {
        reason: Reason,
        retry_in: Option<Duration>,
    },
    Refuse {
        reason: Reason,
    },
    /// The worker needs more time: the lease lasts this long from now on.
    Extend {
        lease: Duration,
    },
    /// No worker has seen the delivery: a broker polled for a worker that had gone away.
    Returned,
}

/// The result that a worker sends with its ack: JSON of at most [`RESULT_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerResult(Bytes);

impl WorkerResult {
    /// Checks a result. The error says what is wrong, without naming the field.
    pub(crate) fn new(json: &[u8]) -> Result<Self, String> {
        let bytes = json.len();
        if bytes > RESULT_BYTES_MAX {
            return Err(format!("must have at most {RESULT_BYTES_MAX} bytes, has {bytes}"));
        }
        let text = std::str::from_utf8(json).map_err(|_| "must be JSON, which is UTF-8")?;
        check_json(text).map_err(|invalid| invalid.problem)?;
        serde_json::from_str::<IgnoredAny>(text)
            .map_err(|error| format!("must be JSON: {error}"))?;
        // A slice would keep the whole message in memory as long as the record.
        Ok(Self(Bytes::copy_from_slice(json)))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn into_answer(self) -> Answer {
        Answer::of_worker(self.0)
    }
}

/// The result of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettleResult {
    Accepted,
    /// The lease has ended or never existed; nothing was changed.
    Stale,
}

/// Which deliveries a worker may settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SettleScope<'a> {
    pub(crate) namespace: &'a Namespace,
    /// Only deliveries of this queue. A worker on a stream may serve several queues and names none.
    pub(crate) queue: Option<&'a Queue>,
}

impl<'a> SettleScope<'a> {
    /// All deliveries of a namespace.
    pub(crate) const fn of_namespace(namespace: &'a Namespace) -> Self {
        Self { namespace, queue: None }
    }

    pub(super) fn contains(self, delivery: &Delivery) -> bool {
        let definition = &delivery.definition;
        let is_of = |name| matches!(&definition.target, Target::Queue(queue) if queue == name);
        definition.namespace == *self.namespace && self.queue.is_none_or(is_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_json_within_its_limit() {
        let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        for (json, problem) in [
            ("null", None),
            (r#"{"paid": 1.50}"#, None),
            (&text(16_384), None),
            (&text(16_385), Some("must have at most 16384 bytes, has 16385")),
            ("", Some("must be JSON: EOF while parsing a value at line 1 column 0")),
            (
                "1e400",
                Some(
                    "must be JSON that every parser reads: number out of range at line 1 column 5",
                ),
            ),
        ] {
            let result = WorkerResult::new(json.as_bytes());
            assert_eq!(result.err().as_deref(), problem, "{json}");
        }
        assert_eq!(WorkerResult::new(b"\xff").unwrap_err(), "must be JSON, which is UTF-8");
    }
}
