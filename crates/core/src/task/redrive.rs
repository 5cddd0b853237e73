//! Redriving: the fire of a dead letter is scheduled again and stays the same fire.
//!
//! It keeps its id and its attempts, and further attempts are numbered on. `attempts_max`, the
//! backoff and `expires_after` count from the redrive. A fire whose task had continued without it
//! becomes a task of its own, which knows where it comes from ([`Origin`]), because its task is
//! before another fire by then.

use std::sync::Arc;
use std::time::Duration;

use crate::attempt::{AttemptNo, AttemptRecord, AttemptResult};
use crate::limits::{ANSWERS_KEPT_BYTES_MAX, ATTEMPTS_KEPT_MAX};
use crate::{
    Due, FireId, NewTask, Occasion, Schedule, Task, TaskId, TaskKey, TaskState, Timestamp,
};

/// What a task knows about the last redrive of its current fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redrive {
    /// When the fire was scheduled again.
    pub at: Timestamp,
    /// The number of the last attempt before that; 0 if none is recorded.
    pub attempts_before: u32,
    /// The fire, if it belongs to another task.
    pub origin: Option<Origin>,
}

/// The fire of a task that continued without it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The fire, and with it the task.
    pub fire_id: FireId,
    /// The key of that task. A redriven fire has none of its own: a key names one task.
    pub key: Option<TaskKey>,
}

impl Task {
    /// Whether the task continued after its current fire, so that the fire is redriven as a task
    /// of its own ([`redriven_apart`](Self::redriven_apart)). Asked of the task in a dead letter.
    #[must_use]
    pub fn continued(&self) -> bool {
        self.recurs() || self.resumes_at.is_some()
    }

    /// When the current fire is due if it is redriven at `now`. That is after its nominal time, so
    /// that a touch, which makes another fire of it, is never mistaken for a postponement.
    #[must_use]
    pub fn redriven_at(&self, now: Timestamp) -> Timestamp {
        now.max(self.nominal_at.after(Duration::from_millis(1)))
    }

    /// The task of a dead letter that ended with it, scheduled again.
    #[must_use]
    pub fn redriven(self, now: Timestamp) -> Self {
        let origin = self.redrive.as_ref().and_then(|redrive| redrive.origin.clone());
        let redrive = Some(Box::new(self.redrive_from(now, origin)));
        let (fire_at, version) = (self.redriven_at(now), self.version.next());
        let state = TaskState::Scheduled;
        Self { fire_at, version, redrive, state, updated_at: now, ..self }
    }

    /// The current fire as a task of its own with the id `id`. It is due at
    /// [`redriven_at`](Self::redriven_at), which should be in the id.
    #[must_use]
    pub fn redriven_apart(&self, id: TaskId, now: Timestamp) -> Self {
        let definition = &self.definition;
        let origin = Origin { fire_id: self.fire().id, key: definition.key.clone() };
        let schedule = Schedule::Once(Due::At(self.due_at()));
        let apart = NewTask { key: None, schedule, ..NewTask::clone(definition) };
        let version = self.version.next();
        Self {
            fire_at: self.redriven_at(now),
            nominal_at: self.nominal_at,
            attempts: self.attempts.clone(),
            occasion: self.occasion,
            redrive: Some(Box::new(self.redrive_from(now, Some(origin)))),
            ..Self::new(id, Arc::new(apart), now, version)
        }
    }

    fn redrive_from(&self, at: Timestamp, origin: Option<Origin>) -> Redrive {
        let attempts_before = self.attempts.last().map_or(0, |last| last.number.get());
        Redrive { at, attempts_before, origin }
    }

    /// The fire of another task that this task redrives.
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.redrive.as_ref()?.origin.as_ref()
    }

    /// The definition that a delivery of the current fire has: with the key of the task that the
    /// fire belongs to.
    #[must_use]
    pub fn delivered_definition(&self) -> Arc<NewTask> {
        match self.origin() {
            Some(Origin { key: Some(key), .. }) => {
                let key = Some(key.clone());
                Arc::new(NewTask { key, ..NewTask::clone(&self.definition) })
            }
            _ => Arc::clone(&self.definition),
        }
    }

    /// The task moved to another time by its caller: a new fire. A redriven fire of another task
    /// stays the same fire, because that task may have a fire at the new time. A manual fire that
    /// has not ended comes first.
    #[must_use]
    pub fn moved(self, fire_at: Timestamp) -> Self {
        if self.origin().is_some() {
            return Self { fire_at: self.redriven_at(fire_at), ..self };
        }
        if self.occasion == Occasion::Manual {
            return Self { resumes_at: Some(fire_at), ..self };
        }
        Self { fire_at, nominal_at: fire_at, attempts: Vec::new(), redrive: None, ..self }
    }

    /// The number of the next attempt of the current fire.
    #[must_use]
    pub fn attempt_next(&self) -> AttemptNo {
        self.attempts.last().map_or(AttemptNo::FIRST, |last| last.number.next())
    }

    /// The same, counted from the last redrive, as the retry policy counts.
    #[must_use]
    pub fn attempt_since_redrive(&self) -> AttemptNo {
        let before = self.redrive.as_ref().map_or(0, |redrive| redrive.attempts_before);
        AttemptNo::new(self.attempt_next().get().saturating_sub(before))
    }

    /// Adds the attempt that has just ended. Of very many, the latest are kept; of many answers,
    /// the bodies of the latest.
    pub fn add_attempt(
        &mut self,
        fired_at: Timestamp,
        ended_at: Timestamp,
        result: impl Into<AttemptResult>,
    ) {
        let AttemptResult { outcome, answer } = result.into();
        let number = self.attempt_next();
        let excess = (self.attempts.len() + 1).saturating_sub(ATTEMPTS_KEPT_MAX);
        self.attempts.drain(..excess);
        self.updated_at = ended_at;
        // Most fires have one attempt.
        self.attempts.reserve_exact(1);
        self.attempts.push(AttemptRecord { number, fired_at, ended_at, outcome, answer });
        self.drop_old_answers();
    }

    /// Drops the bodies of the oldest answers if all together have too many bytes.
    fn drop_old_answers(&mut self) {
        let mut kept = 0;
        for answer in self.attempts.iter_mut().rev().filter_map(|it| it.answer.as_mut()) {
            kept += answer.body().len();
            if kept > ANSWERS_KEPT_BYTES_MAX && !answer.body().is_empty() {
                **answer = answer.without_body();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::fixtures::{SECOND, at, due_once_at, every_second, with_attempt};
    use crate::{Answer, Occasion, Outcome, Reason, Series};

    fn next_id() -> TaskId {
        TaskId::floor(at(500))
    }

    #[test]
    fn the_bodies_of_the_oldest_answers_are_dropped_when_all_together_are_too_large() {
        let mut task = due_once_at(7);
        let body = vec![b'x'; 16 * 1024];
        for attempt in 0..6 {
            let answer = Answer::of_response(500, "text/plain", &body, true, usize::MAX);
            let outcome = Outcome::Failed { reason: Reason::new("HTTP 500"), retry_in: None };
            let result = AttemptResult { outcome, answer: Some(Box::new(answer)) };
            task.add_attempt(at(attempt), at(attempt), result);
        }
        let kept: Vec<usize> =
            task.attempts.iter().map(|it| it.answer.as_ref().unwrap().body().len()).collect();
        assert_eq!(kept, [0, 0, 16_384, 16_384, 16_384, 16_384]);
        assert!(task.attempts[0].answer.as_ref().unwrap().is_truncated());
        assert_eq!(task.attempts[0].answer.as_ref().unwrap().status(), Some(500));
        assert_eq!(task.updated_at, at(5));
    }

    #[test]
    fn a_redriven_fire_keeps_its_id_and_attempts_and_counts_anew() {
        let dead = with_attempt(with_attempt(due_once_at(7), at(7)), at(8));
        let redriven = dead.clone().redriven(at(100));
        assert_eq!((redriven.id, redriven.fire().id), (dead.id, dead.fire().id));
        assert_eq!((redriven.fire_at, redriven.due_at()), (at(100), at(7)));
        assert_eq!(redriven.attempts, dead.attempts);
        assert_eq!(redriven.attempt_next().get(), 3);
        assert_eq!(redriven.attempt_since_redrive(), AttemptNo::FIRST);
        let again = with_attempt(redriven, at(100)).redriven(at(200));
        assert_eq!(again.attempt_next().get(), 4);
        assert_eq!(again.attempt_since_redrive(), AttemptNo::FIRST);
    }

    #[test]
    fn expires_after_counts_from_the_last_redrive() {
        let task = due_once_at(7);
        let expires_after = Some(SECOND * 10);
        let definition = NewTask { expires_after, ..NewTask::clone(&task.definition) };
        let task = Task { definition: definition.into(), ..task };
        assert_eq!(task.expires_at(), Some(at(17)));
        assert_eq!(task.redriven(at(100)).expires_at(), Some(at(110)));
    }

    #[test]
    fn a_fire_of_a_series_is_redriven_apart_from_it_as_the_same_fire() {
        let series = Series { jitter: SECOND, ..Series::default() };
        let dead = Task { occasion: Occasion::Due, ..with_attempt(every_second(series), at(2)) };
        assert!(dead.continued());
        let apart = dead.redriven_apart(next_id(), at(500));
        assert_eq!((apart.id, apart.fire().id), (next_id(), dead.fire().id));
        assert_eq!((apart.due_at(), apart.fire_at), (dead.due_at(), at(500)));
        assert_eq!((apart.attempts.len(), apart.attempt_next().get()), (1, 2));
        assert!(!apart.continued(), "it is over when the fire is");
        assert_eq!(apart.next_step(TaskState::Done, at(501)).next, None);
        // It dies again, and is the same task and fire once more.
        let again = with_attempt(apart.clone(), at(500)).redriven(at(600));
        assert_eq!((again.id, again.fire().id), (apart.id, dead.fire().id));
        assert_eq!(again.origin(), apart.origin());
        let moved = again.moved(at(700));
        assert_eq!((moved.fire().id, moved.fire_at), (dead.fire().id, at(700)));
        assert_eq!(moved.attempts.len(), 2);
    }

    #[test]
    fn a_delivery_of_a_redriven_fire_has_the_key_of_its_task_and_the_record_has_not() {
        let dead = every_second(Series::default());
        let key = Some(TaskKey::new("nightly").unwrap());
        let definition = NewTask { key: key.clone(), ..NewTask::clone(&dead.definition) };
        let dead = Task { definition: definition.into(), ..dead };
        let apart = dead.redriven_apart(next_id(), at(500));
        assert_eq!((&apart.definition.key, &apart.delivered_definition().key), (&None, &key));
        assert_eq!(dead.delivered_definition(), dead.definition);
    }

    #[test]
    fn a_redriven_task_that_its_caller_moves_is_another_fire() {
        let redriven = with_attempt(due_once_at(7), at(7)).redriven(at(100));
        let moved = redriven.clone().moved(at(200));
        assert_ne!(moved.fire().id, redriven.fire().id);
        assert_eq!((moved.redrive, moved.attempts.len()), (None, 0));
    }

    #[test]
    fn a_redrive_is_due_after_the_nominal_time() {
        let dead = due_once_at(7);
        for now in [3, 7] {
            let redriven = dead.clone().redriven(at(now));
            assert_eq!(redriven.fire_at, at(7).after(Duration::from_millis(1)), "at {now}");
        }
    }

    #[test]
    fn the_latest_attempts_are_kept() {
        let mut task = due_once_at(1);
        for _ in 0..ATTEMPTS_KEPT_MAX + 5 {
            task.add_attempt(at(1), at(1), Outcome::Expired);
        }
        let numbers = task.attempts.iter().map(|attempt| attempt.number.get());
        let want = 6..=u32::try_from(ATTEMPTS_KEPT_MAX).unwrap() + 5;
        assert!(numbers.eq(want));
    }
}
