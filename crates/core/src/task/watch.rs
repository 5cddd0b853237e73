//! Watches: what a touch does to one, and what follows when one has fired.
//!
//! A watch is *armed* until `fire_at`. When it has fired it is silent (`Done` or `Dead`) until a
//! touch arms it again. With `on_return` that touch first gives a fire with the occasion `Return`.

use std::time::Duration;

use crate::{Occasion, Schedule, Task, TaskState, Timestamp};

impl Task {
    /// Until when a touch at `now` arms the watch: `within` from now, but no later than
    /// `postpone_max` after it was armed.
    #[must_use]
    pub fn touched_until(&self, within: Duration, now: Timestamp) -> Timestamp {
        let until = now.after(within);
        match &self.definition.schedule {
            Schedule::Watch { postpone_max: Some(max), .. } if self.is_armed() => {
                until.min(self.armed_at.unwrap_or(self.created_at).after(*max))
            }
            _ => until,
        }
    }

    /// Whether the watch was touched while its current fire was being delivered. A failed attempt
    /// of that fire need not be retried.
    #[must_use]
    pub fn touched_while_firing(&self) -> bool {
        matches!(self.definition.schedule, Schedule::Watch { .. })
            && self.resumes_at.is_some()
            && self.occasion == Occasion::Due
    }

    /// Returns the task after a touch at `now`: armed until `until`. A manual fire or a fire with
    /// the occasion `Return` that has not ended comes first. A task that is no watch is moved to
    /// `until`.
    #[must_use]
    pub fn touched(&self, until: Timestamp, now: Timestamp) -> Self {
        let Schedule::Watch { on_return, .. } = self.definition.schedule else {
            return Self { updated_at: now, ..self.at_nominal(until) };
        };
        let has_fired = !self.is_armed() && self.occasion == Occasion::Due;
        let armed_at = if self.is_armed() { self.armed_at } else { Some(now) };
        let state = TaskState::Scheduled;
        let task = Self { armed_at, state, updated_at: now, ..self.clone() };
        match self.occasion {
            Occasion::Manual | Occasion::Return => Self { resumes_at: Some(until), ..task },
            Occasion::Due if has_fired && on_return => task.with_return_fire(until, now),
            Occasion::Due => task.at_nominal(until),
        }
    }

    /// The watch after its current fire has ended: silent in the given state, or, if it was
    /// touched meanwhile, armed or about to give its return fire.
    pub(super) fn watch_next_step(
        &self,
        on_return: bool,
        silent: TaskState,
        now: Timestamp,
    ) -> Self {
        match (self.resumes_at, self.occasion) {
            (Some(at), Occasion::Due) if on_return => self.with_return_fire(at, now),
            (Some(at), _) => self.at_nominal(at),
            (None, _) => {
                let state = if self.state == TaskState::Paused { self.state } else { silent };
                let (fire_at, occasion) = (self.nominal_at, Occasion::Due);
                Self { state, fire_at, occasion, attempts: Vec::new(), ..self.clone() }
            }
        }
    }

    fn is_armed(&self) -> bool {
        let silent = matches!(self.state, TaskState::Done | TaskState::Dead);
        !silent && self.occasion == Occasion::Due && self.attempts.is_empty()
    }

    /// The watch with a return fire now. After that it is armed until `until`.
    fn with_return_fire(&self, until: Timestamp, now: Timestamp) -> Self {
        // A fire is identified by its nominal time, so this one needs a later one.
        let nominal_at = now.max(self.nominal_at.after(Duration::from_millis(1)));
        let next = self.at_nominal(nominal_at);
        Self { occasion: Occasion::Return, resumes_at: Some(until), ..next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::fixtures::{SECOND, at, watch, with_attempt};

    #[test]
    fn a_watch_that_has_fired_is_silent_until_it_is_touched() {
        let watch = watch(false, None);
        assert_eq!(watch.fire_at, at(10));
        for end in [TaskState::Done, TaskState::Dead] {
            let silent = with_attempt(watch.clone(), at(10)).next_step(end, at(11)).next.unwrap();
            assert_eq!((silent.state, silent.nominal_at), (end, at(10)));
            let until = silent.touched_until(SECOND * 10, at(50));
            let armed = silent.touched(until, at(50));
            assert_eq!((armed.state, armed.fire_at), (TaskState::Scheduled, at(60)));
            assert_eq!((armed.occasion, armed.attempts.len()), (Occasion::Due, 0));
        }
    }

    #[test]
    fn a_watch_with_on_return_gives_one_return_fire_when_it_is_touched_after_it_has_fired() {
        let watch = watch(true, None);
        // A touch in time gives no return fire.
        let touched = watch.touched(at(15), at(5));
        assert_eq!((touched.occasion, touched.fire_at), (Occasion::Due, at(15)));
        let silent = watch.next_step(TaskState::Done, at(11)).next.unwrap();
        let returns = silent.touched(at(60), at(50));
        assert_eq!((returns.occasion, returns.fire_at), (Occasion::Return, at(50)));
        // Touched again before the return fire has ended: one return fire, armed by the last touch.
        let returns = returns.touched(at(61), at(51));
        assert_eq!((returns.occasion, returns.fire_at), (Occasion::Return, at(50)));
        let armed = returns.next_step(TaskState::Done, at(52)).next.unwrap();
        assert_eq!((armed.occasion, armed.fire_at), (Occasion::Due, at(61)));
        // Touched while its fire was in flight.
        let touched = Task { resumes_at: Some(at(20)), ..watch };
        let returns = touched.next_step(TaskState::Done, at(12)).next.unwrap();
        assert_eq!((returns.occasion, returns.resumes_at), (Occasion::Return, Some(at(20))));
        assert_ne!(returns.nominal_at, touched.nominal_at, "another fire");
    }

    #[test]
    fn touches_postpone_a_watch_no_further_than_its_limit() {
        let mut watch = watch(false, Some(SECOND * 25));
        for (now, want) in [(5, 15), (14, 24), (20, 25), (24, 25)] {
            let until = watch.touched_until(SECOND * 10, at(now));
            assert_eq!(until, at(want), "touched at {now}");
            watch = watch.touched(until, at(now));
        }
        let silent = watch.next_step(TaskState::Done, at(25)).next.unwrap();
        let again = silent.touched(silent.touched_until(SECOND * 10, at(40)), at(40));
        assert_eq!(again.fire_at, at(50), "the limit starts again");
        assert_eq!(again.touched_until(SECOND * 90, at(41)), at(65));
    }
}
