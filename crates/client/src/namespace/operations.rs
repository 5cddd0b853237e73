//! Operations: one verb for all tasks of a namespace that match a filter; and what ended in the
//! last hours.

use std::time::Duration;

use punctual_proto::v1;
use punctual_proto::v1::measures_client::MeasuresClient;
use punctual_proto::v1::operations_client::OperationsClient;

use super::Namespace;
use crate::brokers::channel::TrackedChannel;
use crate::client::unary::RetryWhen;
use crate::wire::non_empty;
use crate::{Error, Timestamp};

/// Which tasks an operation is about: those that match every condition that is set. An empty filter
/// is every task of the namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationFilter {
    /// `scheduled`, `firing`, `paused` or `done`.
    pub state: Option<String>,
    /// `once`, `cron`, `every`, `watch`, or `recurring`.
    pub kind: Option<String>,
    /// How the keys begin.
    pub key_prefix: Option<String>,
    /// A label, as `name=value`.
    pub label: Option<String>,
    /// Due at this time or later.
    pub from: Option<Timestamp>,
    /// Due before this time.
    pub to: Option<Timestamp>,
}

/// What an operation does with each task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationVerb {
    /// It never fires again.
    Cancel,
    /// It waits until it is resumed.
    Pause,
    /// A paused task continues.
    Resume,
    /// It fires now, in addition to its schedule.
    Fire,
    /// It is due so much later. Cron and interval tasks cannot be moved.
    Shift(Duration),
    /// It is due later by a part of this that is different for each task, so that tasks that are
    /// due together are due evenly over this time.
    Spread(Duration),
}

impl OperationVerb {
    fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Fire => "fire",
            Self::Shift(_) => "shift",
            Self::Spread(_) => "spread",
        }
    }

    fn later_ms(self) -> u64 {
        let later = match self {
            Self::Shift(later) | Self::Spread(later) => later,
            _ => return 0,
        };
        u64::try_from(later.as_millis()).unwrap_or(u64::MAX)
    }
}

/// An operation, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationInfo {
    /// Unique on the broker that took it.
    pub id: String,
    /// `cancel`, `pause`, `resume`, `fire`, `shift` or `spread`.
    pub verb: String,
    /// How much later the tasks are due, with `shift` and `spread`.
    pub later: Option<Duration>,
    /// `running`, `done`, `stopped` or `failed`.
    pub state: String,
    /// Tasks that were found so far.
    pub matched: u64,
    /// Tasks that were changed.
    pub changed: u64,
    /// Tasks that could not be changed.
    pub failed: u64,
    /// When it was started.
    pub started_at: Timestamp,
    /// When it ended; `None` while it runs.
    pub ended_at: Option<Timestamp>,
    /// What the token of its caller grants.
    pub by: String,
    /// Why it has failed.
    pub problem: Option<String>,
}

/// What an operation would change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationMatches {
    /// How many tasks match.
    pub matched: u64,
    /// Whether that is all; otherwise there are more, which were not counted.
    pub exact: bool,
}

/// What ended in each step of the last hours.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MeasuredSeries {
    /// Since when all brokers have counted; what ended before is missing.
    pub since: Option<Timestamp>,
    /// The length of a point.
    pub step: Duration,
    /// The points, in order.
    pub points: Vec<MeasuredPoint>,
}

/// What ended in one step.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MeasuredPoint {
    /// When the step began.
    pub at: Timestamp,
    /// Fires that succeeded.
    pub done: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Fires that became dead letters.
    pub dead: u64,
    /// The 99th percentile of lags in milliseconds; `None` if no first attempt ended.
    pub lag_p99_ms: Option<f64>,
}

/// Sends a request by one method of a stub.
macro_rules! call {
    ($namespace:expr, $stub:ident, $retry_when:expr, $method:ident, $request:expr) => {{
        let request = $request;
        let call = |channel: TrackedChannel| {
            let request = request.clone();
            async move { $stub::new(channel).$method(request).await }
        };
        $namespace.client.unary().call_channel($retry_when, call).await
    }};
}

pub(super) use call;

impl Namespace {
    /// Starts an operation: a verb for every task that matches and was created before. It is kept
    /// in the memory of the broker that took it.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 422 that names the field; any other [`Error`]. If the answer
    /// was lost, the operation may have been started.
    pub async fn start_operation(
        &self,
        verb: OperationVerb,
        filter: OperationFilter,
    ) -> Result<OperationInfo, Error> {
        let answer = self.start(verb, filter, Sending::ToStart).await?;
        answer.operation.map(info).ok_or(Error::Answer("the answer to a start has no operation"))
    }

    /// Counts the tasks that an operation would change.
    ///
    /// # Errors
    /// As [`start_operation`](Self::start_operation); nothing is changed.
    pub async fn count_operation(
        &self,
        verb: OperationVerb,
        filter: OperationFilter,
    ) -> Result<OperationMatches, Error> {
        let answer = self.start(verb, filter, Sending::ToCount).await?;
        let counted =
            answer.dry_run.ok_or(Error::Answer("the answer to a dry run has no count"))?;
        Ok(OperationMatches { matched: counted.matched, exact: counted.exact })
    }

    async fn start(
        &self,
        verb: OperationVerb,
        filter: OperationFilter,
        sending: Sending,
    ) -> Result<v1::StartOperationResponse, Error> {
        let millis = |at: Option<Timestamp>| at.map_or(0, Timestamp::as_millis);
        let filter = v1::TaskFilter {
            state: filter.state.unwrap_or_default(),
            kind: filter.kind.unwrap_or_default(),
            key_prefix: filter.key_prefix.unwrap_or_default(),
            label: filter.label.unwrap_or_default(),
            from_ms: millis(filter.from),
            to_ms: millis(filter.to),
        };
        let request = v1::StartOperationRequest {
            namespace: self.name.to_string(),
            verb: verb.name().to_owned(),
            r#where: Some(filter),
            dry_run: sending == Sending::ToCount,
            later_ms: verb.later_ms(),
        };
        let retry_when = match sending {
            Sending::ToCount => RetryWhen::Always,
            Sending::ToStart => RetryWhen::IfNotSeen,
        };
        call!(self, OperationsClient, retry_when, start, request)
    }

    /// Lists the operations that the broker has taken, newest first.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn operations(&self) -> Result<Vec<OperationInfo>, Error> {
        let request = v1::OperationsRequest { namespace: self.name.to_string() };
        let answer = call!(self, OperationsClient, RetryWhen::Always, list, request)?;
        Ok(answer.operations.into_iter().map(info).collect())
    }

    /// Returns how far an operation is.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 if the broker does not have it; any other [`Error`].
    pub async fn operation(&self, id: impl Into<String>) -> Result<OperationInfo, Error> {
        let request = v1::OperationRequest { namespace: self.name.to_string(), id: id.into() };
        Ok(info(call!(self, OperationsClient, RetryWhen::Always, get, request)?))
    }

    /// Stops an operation after its present step. What it has changed stays changed.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 if the broker does not have it; any other [`Error`].
    pub async fn stop_operation(&self, id: impl Into<String>) -> Result<OperationInfo, Error> {
        let request = v1::OperationRequest { namespace: self.name.to_string(), id: id.into() };
        Ok(info(call!(self, OperationsClient, RetryWhen::Always, stop, request)?))
    }

    /// Returns what ended in each step (1, 5, 15 or 60 minutes) of the last hours, over all
    /// brokers.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 422 that names the field; any other [`Error`].
    pub async fn series(&self, back: Duration, step: Duration) -> Result<MeasuredSeries, Error> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = v1::MeasureSeriesRequest {
            namespace: self.name.to_string(),
            for_ms: millis(back),
            step_ms: millis(step),
        };
        let answer = call!(self, MeasuresClient, RetryWhen::Always, series, request)?;
        let point = |point: v1::MeasurePoint| MeasuredPoint {
            at: Timestamp::from_millis(point.at_ms),
            done: point.done,
            failed: point.failed,
            dead: point.dead,
            lag_p99_ms: point.lag_ms.map(|lag| lag.p99),
        };
        Ok(MeasuredSeries {
            since: (answer.since_ms != 0).then(|| Timestamp::from_millis(answer.since_ms)),
            step: Duration::from_millis(answer.step_ms),
            points: answer.points.into_iter().map(point).collect(),
        })
    }
}

/// Whether an operation is only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    ToCount,
    ToStart,
}

fn info(operation: v1::Operation) -> OperationInfo {
    let ended_at = operation.ended_at_ms;
    OperationInfo {
        id: operation.id,
        verb: operation.verb,
        later: (operation.later_ms != 0).then(|| Duration::from_millis(operation.later_ms)),
        state: operation.state,
        matched: operation.matched,
        changed: operation.changed,
        failed: operation.failed,
        started_at: Timestamp::from_millis(operation.started_at_ms),
        ended_at: (ended_at != 0).then(|| Timestamp::from_millis(ended_at)),
        by: operation.by,
        problem: non_empty(operation.problem),
    }
}
