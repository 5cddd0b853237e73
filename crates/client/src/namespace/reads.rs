//! Calls about existing tasks and their past: pause, resume, fire, fires, explain, dead letters,
//! counts, queues and workers.
//!
//! The client repeats calls that only read. Of the others it repeats those that no broker has
//! carried out.

use std::time::Duration;

use punctual_proto::v1;

use super::Namespace;
use crate::brokers::channel::TasksStub;
use crate::client::unary::RetryWhen;
use crate::record::{
    DeadGroupFilter, DeadGroups, DeadLetters, Explanation, FireEnd, FirePage, Forecast, LaneList,
    QueueInfo, Redriven, Stats, WorkerInfo,
};
use crate::task::Task;
use crate::time::millis_up;
use crate::wire::{self, record};
use crate::{Error, FireId, Timestamp};

/// Sends a request of a namespace by one method of the stub.
macro_rules! call {
    ($namespace:expr, $retry_when:expr, $method:ident, $request:expr) => {{
        let request = $request;
        let call = |mut tasks: TasksStub| {
            let request = request.clone();
            async move { tasks.$method(request).await }
        };
        $namespace.client.unary().call($retry_when, call).await
    }};
}

impl Namespace {
    /// Stops firing a task until it is resumed.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 if there is no such task, with 409 if an attempt is in
    /// flight; any other [`Error`].
    pub async fn pause(&self, key_or_id: impl Into<String>) -> Result<Task, Error> {
        let request = self.task_request(key_or_id);
        wire::task(call!(self, RetryWhen::Always, pause, request)?)
    }

    /// Lets a paused task fire again.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 if there is no such task; any other [`Error`].
    pub async fn resume(&self, key_or_id: impl Into<String>) -> Result<Task, Error> {
        let request = self.task_request(key_or_id);
        wire::task(call!(self, RetryWhen::Always, resume, request)?)
    }

    /// Fires a task once, at once, in addition to its schedule.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 if there is no such task, with 409 if it is paused or
    /// firing; any other [`Error`]. After [`Error::Lost`] the task may have fired.
    pub async fn fire(&self, key_or_id: impl Into<String>) -> Result<Task, Error> {
        let request = self.task_request(key_or_id);
        wire::task(call!(self, RetryWhen::IfNotSeen, fire, request)?)
    }

    /// Says what a task waits for, or how it ended; `None` if there is none, and none that had the
    /// key is in the history.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn explain(
        &self,
        key_or_id: impl Into<String>,
    ) -> Result<Option<Explanation>, Error> {
        let request = self.task_request(key_or_id);
        let answer = unless_not_found(call!(self, RetryWhen::Always, explain, request))?;
        answer.map(record::explanation).transpose()
    }

    /// Returns the fires of one task, newest first, at most 100; `None` if there is no such task,
    /// and none that had the key is in the history.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn fires_of(&self, key_or_id: impl Into<String>) -> Result<Option<FirePage>, Error> {
        let request = v1::FiresRequest {
            namespace: self.name.to_string(),
            key_or_id: key_or_id.into(),
            ..v1::FiresRequest::default()
        };
        let answer = unless_not_found(call!(self, RetryWhen::Always, fires, request))?;
        Ok(answer.map(record::fire_page))
    }

    /// Returns a page of the fires of all tasks that have ended, newest first.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn fires(&self, filter: Fires) -> Result<FirePage, Error> {
        let request = v1::FiresRequest { namespace: self.name.to_string(), ..filter.0 };
        call!(self, RetryWhen::Always, fires, request).map(record::fire_page)
    }

    /// Returns a page of dead letters: at most `limit`, after the [`DeadLetters::next`] of
    /// another page.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn dead_letters(
        &self,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<DeadLetters, Error> {
        let (namespace, cursor) = (self.name.to_string(), cursor.unwrap_or_default());
        let request = v1::DeadLettersRequest { namespace, limit, cursor, group: None };
        record::dead_letter_page(call!(self, RetryWhen::Always, dead_letters, request)?)
    }

    /// Schedules dead letters again: each is fired at once, with all of its attempts.
    ///
    /// # Errors
    /// Any [`Error`]. After [`Error::Lost`] some may have been redriven.
    pub async fn redrive(&self, ids: impl IntoIterator<Item = FireId>) -> Result<Redriven, Error> {
        let ids: Vec<String> = ids.into_iter().map(|id| id.as_str().to_owned()).collect();
        if ids.is_empty() {
            return Ok(Redriven { redriven: 0, problems: Vec::new(), more: false });
        }
        let (namespace, all, group) = (self.name.to_string(), false, None);
        let request = v1::RedriveRequest { namespace, ids, all, group };
        call!(self, RetryWhen::IfNotSeen, redrive, request).map(record::redriven)
    }

    /// Schedules all dead letters of the namespace again, as many as one call can.
    ///
    /// # Errors
    /// Those of [`Namespace::redrive`].
    pub async fn redrive_all(&self) -> Result<Redriven, Error> {
        let (namespace, ids) = (self.name.to_string(), Vec::new());
        let request = v1::RedriveRequest { namespace, ids, all: true, group: None };
        call!(self, RetryWhen::IfNotSeen, redrive, request).map(record::redriven)
    }

    /// Schedules the dead letters of a group again, as many as one call can.
    ///
    /// # Errors
    /// Those of [`Namespace::redrive`].
    pub async fn redrive_group(&self, group: DeadGroupFilter) -> Result<Redriven, Error> {
        let (namespace, ids, group) = (self.name.to_string(), Vec::new(), Some(group.0));
        let request = v1::RedriveRequest { namespace, ids, all: false, group };
        call!(self, RetryWhen::IfNotSeen, redrive, request).map(record::redriven)
    }

    /// Counts the dead letters by reason and target, the largest groups first.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn dead_groups(&self) -> Result<DeadGroups, Error> {
        let request = v1::NamespaceRequest { namespace: self.name.to_string() };
        call!(self, RetryWhen::Always, dead_groups, request).map(record::dead_groups)
    }

    /// Removes the dead letters of a group for good, as many as one call can. Returns how many were
    /// removed, and whether some are left.
    ///
    /// # Errors
    /// Any [`Error`]. After [`Error::Lost`] some may have been removed.
    pub async fn delete_dead_group(&self, group: DeadGroupFilter) -> Result<(u64, bool), Error> {
        let (namespace, ids, group) = (self.name.to_string(), Vec::new(), Some(group.0));
        let request = v1::DeleteDeadLettersRequest { namespace, ids, all: false, group };
        let answer = call!(self, RetryWhen::IfNotSeen, delete_dead_letters, request)?;
        Ok((answer.deleted, answer.more))
    }

    /// Removes a dead letter for good. Returns whether there was one.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn delete_dead_letter(&self, id: &FireId) -> Result<bool, Error> {
        let (namespace, fire_id) = (self.name.to_string(), id.as_str().to_owned());
        let request = v1::DeleteDeadLetterRequest { namespace, fire_id };
        let answer = call!(self, RetryWhen::IfNotSeen, delete_dead_letter, request);
        Ok(unless_not_found(answer)?.is_some())
    }

    /// Counts the tasks of the namespace by state.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn stats(&self) -> Result<Stats, Error> {
        let request = v1::NamespaceRequest { namespace: self.name.to_string() };
        call!(self, RetryWhen::Always, stats, request).map(|answer| record::stats(&answer))
    }

    /// Counts the fires that are expected in each step of time from now on.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn forecast(&self, ahead: Duration, step: Duration) -> Result<Forecast, Error> {
        self.forecast_of(None, ahead, step, "").await
    }

    /// As [`forecast`](Self::forecast), from an instant on.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn forecast_at(
        &self,
        at: impl Into<Timestamp> + Send,
        ahead: Duration,
        step: Duration,
    ) -> Result<Forecast, Error> {
        self.forecast_of(Some(at.into()), ahead, step, "").await
    }

    /// As [`forecast_at`](Self::forecast_at), with the fires of each target. Tasks are read for it,
    /// at most 100,000; the forecast is complete up to the last of them.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn forecast_by_target(
        &self,
        at: impl Into<Timestamp> + Send,
        ahead: Duration,
        step: Duration,
    ) -> Result<Forecast, Error> {
        self.forecast_of(Some(at.into()), ahead, step, "target").await
    }

    async fn forecast_of(
        &self,
        at: Option<Timestamp>,
        ahead: Duration,
        step: Duration,
        by: &str,
    ) -> Result<Forecast, Error> {
        let (for_ms, step_ms) = (millis_up(ahead), millis_up(step));
        let (namespace, at_ms) = (self.name.to_string(), at.map(Timestamp::as_millis));
        let request = v1::ForecastRequest { namespace, for_ms, step_ms, at_ms, by: by.to_owned() };
        call!(self, RetryWhen::Always, forecast, request).map(record::forecast)
    }

    /// Lists the queues that have due tasks, deliveries in flight or workers, by name.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, Error> {
        let request = v1::NamespaceRequest { namespace: self.name.to_string() };
        let answer = call!(self, RetryWhen::Always, queues, request)?;
        Ok(answer.queues.into_iter().map(record::queue).collect())
    }

    /// Lists the workers that are connected, to any broker. One with streams to several brokers is
    /// listed once for each.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>, Error> {
        let request = v1::NamespaceRequest { namespace: self.name.to_string() };
        let answer = call!(self, RetryWhen::Always, workers, request)?;
        Ok(answer.workers.into_iter().map(record::worker).collect())
    }

    /// Lists the targets that have due tasks, deliveries in flight, or attempts that failed in the
    /// last 15 minutes.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn lanes(&self) -> Result<LaneList, Error> {
        let request = v1::NamespaceRequest { namespace: self.name.to_string() };
        call!(self, RetryWhen::Always, lanes, request).map(record::lanes)
    }

    fn task_request(&self, key_or_id: impl Into<String>) -> v1::TaskRequest {
        v1::TaskRequest { namespace: self.name.to_string(), key_or_id: key_or_id.into() }
    }
}

/// `None` instead of a problem with status 404.
pub(super) fn unless_not_found<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Problem(problem)) if problem.status == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// A filter for listing fires. By default all fires that have ended.
#[derive(Debug, Clone, Default)]
#[must_use = "a filter does nothing until it is passed to `fires`"]
pub struct Fires(v1::FiresRequest);

impl Fires {
    /// Only fires that ended in this way.
    pub fn end(mut self, end: FireEnd) -> Self {
        self.0.end = record::end_filter(end).into();
        self
    }

    /// Only fires of tasks whose key begins with this prefix.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.0.key_prefix = prefix.into();
        self
    }

    /// Only fires of tasks with this label.
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.0.label = format!("{name}={value}");
        self
    }

    /// Only fires that ended at or after this instant.
    pub fn from(mut self, from: impl Into<Timestamp>) -> Self {
        self.0.from_ms = from.into().as_millis();
        self
    }

    /// Only fires that ended before this instant.
    pub fn to(mut self, to: impl Into<Timestamp>) -> Self {
        self.0.to_ms = to.into().as_millis();
        self
    }

    /// The most fires of the page.
    pub fn limit(mut self, limit: u32) -> Self {
        self.0.limit = limit;
        self
    }

    /// Continues after another page: the [`FirePage::next`] of that one.
    pub fn cursor(mut self, cursor: impl Into<String>) -> Self {
        self.0.cursor = cursor.into();
        self
    }
}
