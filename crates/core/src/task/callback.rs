//! Callbacks: tasks that report how a fire of another task ended.
//!
//! A task may name a target for fires that succeed and one for fires that become dead letters
//! ([`Callbacks`]). The end of such a fire is reported by a task of its own, the callback, whose
//! payload is the record of the fire. A callback has no key, no callbacks of its own, the default
//! retry policy, and is sent at least once. The owner writes it in the batch that ends the fire.

use std::sync::Arc;

use bytes::Bytes;

use crate::limits::PAYLOAD_BYTES_MAX;
use crate::{
    Due, FireEnd, FireRecord, NewTask, Payload, Schedule, Target, Task, TaskId, Timestamp, Version,
};

/// Where the end of each fire of a task is reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Callbacks {
    /// Receives the record of each fire that succeeded.
    pub on_done: Option<Target>,
    /// Receives the record of each fire that became a dead letter.
    pub on_dead: Option<Target>,
}

impl Callbacks {
    /// Makes the callbacks of a task; `None` without targets.
    #[must_use]
    pub fn new(on_done: Option<Target>, on_dead: Option<Target>) -> Option<Arc<Self>> {
        let any = on_done.is_some() || on_dead.is_some();
        any.then(|| Arc::new(Self { on_done, on_dead }))
    }

    /// The target that receives the record of a fire with this end. A fire that was cancelled,
    /// replaced or skipped is not reported.
    #[must_use]
    pub const fn target_of(&self, end: FireEnd) -> Option<&Target> {
        match end {
            FireEnd::Done => self.on_done.as_ref(),
            FireEnd::Dead(_) => self.on_dead.as_ref(),
            FireEnd::Cancelled | FireEnd::Replaced | FireEnd::Skipped(_) => None,
        }
    }
}

/// Writes the record of a fire as a JSON document: the payload of a callback.
pub type RenderRecord = fn(&FireRecord) -> Bytes;

impl FireRecord {
    /// The callback that sends this record to `target`. It is due at the time in its id.
    #[must_use]
    pub fn callback(
        &self,
        target: &Target,
        id: TaskId,
        render: RenderRecord,
        now: Timestamp,
    ) -> Task {
        let schedule = Schedule::Once(Due::At(id.due()));
        let definition = NewTask {
            payload: self.as_payload(render),
            callback_of: Some(self.fire_id),
            ..NewTask::new(self.namespace.clone(), schedule, target.clone())
        };
        Task::new(id, Arc::new(definition), now, Version::FIRST)
    }

    /// The record as a payload. If it is too large, the bodies of the oldest answers are left out,
    /// and then the oldest attempts.
    fn as_payload(&self, render: RenderRecord) -> Payload {
        let mut bytes = render(self);
        let mut record = None;
        while bytes.len() > PAYLOAD_BYTES_MAX {
            let shorter = record.get_or_insert_with(|| self.clone());
            if !shorter.shorten() {
                return Payload::Empty;
            }
            bytes = render(shorter);
        }
        Payload::Json(bytes)
    }

    /// Drops the older half of the bodies of answers, or of the attempts if no answer has a body.
    /// Returns `false` if nothing is left to drop.
    fn shorten(&mut self) -> bool {
        let answers = self.attempts.iter_mut().filter_map(|attempt| attempt.answer.as_mut());
        let mut bodies: Vec<_> = answers.filter(|answer| !answer.body().is_empty()).collect();
        let half = bodies.len().div_ceil(2);
        for answer in bodies.iter_mut().take(half) {
            ***answer = answer.without_body();
        }
        if half > 0 {
            return true;
        }
        let half = self.attempts.len().div_ceil(2);
        self.attempts.drain(..half);
        half > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::{AttemptResult, Reason};
    use crate::dead::DeadReason;
    use crate::fire::{SkipReason, Skipped};
    use crate::limits::{ANSWER_BYTES_MAX, ATTEMPTS_KEPT_MAX, REASON_BYTES_MAX};
    use crate::task::fixtures::{at, due_once_at};
    use crate::{Answer, Guarantee, Outcome, Queue, RetryPolicy};

    fn queue(name: &str) -> Target {
        Target::Queue(Queue::new(name).unwrap())
    }

    /// As large as a document can be: each byte is escaped, and the bodies of answers in six bytes.
    fn escaped(record: &FireRecord) -> Bytes {
        let mut document = Vec::new();
        for attempt in &record.attempts {
            let reason = match &attempt.outcome {
                Outcome::Failed { reason, .. } => reason.as_str().len(),
                _ => 0,
            };
            let body = attempt.answer.as_ref().map_or(0, |answer| answer.body().len());
            document.extend(std::iter::repeat_n(b'x', 200 + 2 * reason + 6 * body));
        }
        document.into()
    }

    fn record_of(attempts: usize, body: usize) -> FireRecord {
        let mut task = due_once_at(7);
        for _ in 0..attempts {
            let reason = Reason::new(&"\"".repeat(REASON_BYTES_MAX));
            let outcome = Outcome::Failed { reason, retry_in: None };
            let answer = Answer::of_response(500, "text/plain", &vec![0; body], true, body);
            task.add_attempt(at(8), at(8), AttemptResult { outcome, answer: Some(answer.into()) });
        }
        FireRecord::of(&task, FireEnd::Dead(DeadReason::Exhausted), at(9))
    }

    #[test]
    fn only_done_and_dead_fires_are_reported() {
        let both = Callbacks::new(Some(queue("done")), Some(queue("dead"))).unwrap();
        let skipped = Skipped { fires: 1, until: at(1), why: SkipReason::Paused };
        for (end, target) in [
            (FireEnd::Done, Some(queue("done"))),
            (FireEnd::Dead(DeadReason::Exhausted), Some(queue("dead"))),
            (FireEnd::Dead(DeadReason::Unknown), Some(queue("dead"))),
            (FireEnd::Cancelled, None),
            (FireEnd::Replaced, None),
            (FireEnd::Skipped(skipped), None),
        ] {
            assert_eq!(both.target_of(end), target.as_ref(), "{end:?}");
            assert_eq!(Callbacks::default().target_of(end), None);
        }
        assert_eq!(Callbacks::new(None, None), None);
    }

    #[test]
    fn a_callback_is_an_ordinary_task_without_key_and_callbacks() {
        let record = record_of(1, 10);
        let id = TaskId::floor(at(20));
        let callback = record.callback(&queue("reports"), id, |_| "{}".into(), at(10));
        let definition = &callback.definition;
        assert_eq!((callback.id, callback.fire_at, callback.created_at), (id, at(20), at(10)));
        assert_eq!(definition.callback_of, Some(record.fire_id));
        assert_eq!((&definition.key, &definition.callbacks), (&None, &None));
        assert_eq!(definition.namespace, record.namespace);
        assert_eq!(definition.target, queue("reports"));
        assert_eq!(definition.payload, Payload::Json("{}".into()));
        assert_eq!(definition.guarantee, Guarantee::AtLeastOnce);
        assert_eq!(definition.retry, RetryPolicy::default());
        assert_eq!(definition.check(), Ok(()));
    }

    #[test]
    fn a_record_of_any_size_is_cut_to_the_size_of_a_payload() {
        for (attempts, body, kept) in [
            (0, 0, 0),
            (1, ANSWER_BYTES_MAX, 1),
            (6, ANSWER_BYTES_MAX, 6),
            (ATTEMPTS_KEPT_MAX, ANSWER_BYTES_MAX, 200),
            (ATTEMPTS_KEPT_MAX, 1, 200),
        ] {
            let record = record_of(attempts, body);
            let Payload::Json(bytes) = record.as_payload(escaped) else { panic!("empty") };
            assert!(bytes.len() <= PAYLOAD_BYTES_MAX, "{attempts} of {body}: {}", bytes.len());
            assert!(bytes.len() >= kept * 1224, "{attempts} of {body}: {}", bytes.len());
        }
    }

    #[test]
    fn the_latest_answers_and_attempts_are_kept_longest() {
        let mut record = record_of(4, 1000);
        let bodies = |record: &FireRecord| {
            let body = |it: &crate::AttemptRecord| it.answer.as_ref().unwrap().body().len();
            record.attempts.iter().map(|it| (it.number.get(), body(it))).collect::<Vec<_>>()
        };
        for want in [
            vec![(1, 0), (2, 0), (3, 1000), (4, 1000)],
            vec![(1, 0), (2, 0), (3, 0), (4, 1000)],
            vec![(1, 0), (2, 0), (3, 0), (4, 0)],
            vec![(3, 0), (4, 0)],
            vec![(4, 0)],
            vec![],
        ] {
            assert!(record.shorten());
            assert_eq!(bodies(&record), want);
        }
        assert!(!record.shorten());
        let large = |_: &FireRecord| Bytes::from(vec![b'x'; PAYLOAD_BYTES_MAX + 1]);
        assert_eq!(record.as_payload(large), Payload::Empty, "no record is this large");
    }
}
