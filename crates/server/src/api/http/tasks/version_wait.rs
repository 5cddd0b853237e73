//! `GET …/tasks/{key}?after_version=7&wait=20s`: a long poll for the next version of a task.
//!
//! The answer is the task, when it has another version, when it has ended, or when the wait is
//! over; its version says which. Waits are bounded in time, and in number with all other long polls
//! of the namespace. A version counts the changes of callers, so attempts do not end a wait.

use std::time::Duration;

use punctual_core::{Invalid, Version, format_duration};
use serde_json::json;
use tokio::time::{interval, timeout};

use crate::api::find_task::{NamedTask, find};
use crate::api::http::request::QueryParams;
use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};
use crate::schema::{documented, duration};
use crate::task_form::parse_duration_field;

/// How long a call may wait: proxies commonly close a silent connection soon after.
const WAIT_MAX: Duration = Duration::from_secs(30);
const WAIT_DEFAULT: Duration = Duration::from_secs(20);
/// How often the owner is asked while a call waits.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// The largest version that a call may wait for: JSON numbers are exact up to here.
const VERSION_MAX: u64 = (1 << 53) - 1;

documented!(
    /// The version that a caller knows.
    AfterVersion,
    "AfterVersion",
    json!({"type": "integer", "minimum": 0, "maximum": VERSION_MAX})
);
documented!(
    /// How long a call waits for another version.
    VersionWaitText,
    "VersionWait",
    duration(Duration::ZERO, WAIT_MAX)
);

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VersionWait {
    after: Version,
    wait: Duration,
}

impl VersionWait {
    /// Takes the parameters; `None` if the call does not wait.
    pub(super) fn take(params: &mut QueryParams) -> Result<Option<Self>, Problem> {
        let (after, wait) = (params.take("after_version")?, params.take("wait")?);
        let Some(after) = after else {
            return match wait {
                None => Ok(None),
                Some(_) => Err(Invalid::new("wait", "needs after_version").into()),
            };
        };
        let after = after.parse().ok().filter(|after| *after <= VERSION_MAX).ok_or_else(|| {
            Invalid::new("after_version", "must be the `version` of the task, a whole number")
        })?;
        let wait = wait.map(|text| parse_duration_field("wait", &text)).transpose()?;
        let wait = wait.unwrap_or(WAIT_DEFAULT);
        if wait > WAIT_MAX {
            let problem = format!("must be at most {}", format_duration(WAIT_MAX));
            return Err(Invalid::new("wait", problem).into());
        }
        Ok(Some(Self { after: Version::new(after), wait }))
    }

    fn is_over(self, found: &NamedTask) -> bool {
        match found {
            NamedTask::Living(task) => task.version != self.after,
            NamedTask::Ended(_) => true,
        }
    }
}

/// Finds a task, and waits for another version of it if the caller wants that.
pub(super) async fn find_changed(
    broker: &Broker,
    task: TaskRef<'_>,
    wait: Option<VersionWait>,
) -> Result<NamedTask, Problem> {
    let mut found = find(broker, task).await?;
    let Some(wait) = wait.filter(|wait| !wait.is_over(&found)) else {
        return Ok(found);
    };
    let _permit = broker.limits.streams.try_acquire(task.namespace)?;
    let changing = async {
        let mut checks = interval(CHECK_EVERY);
        while !wait.is_over(&found) && !broker.is_draining() {
            checks.tick().await;
            found = find(broker, task).await?;
        }
        Ok(())
    };
    match timeout(wait.wait, changing).await {
        Ok(Err(problem)) => Err(problem),
        Ok(Ok(())) | Err(_) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_needs_a_version_and_is_bounded() {
        for (query, want) in [
            (&[][..], Ok(None)),
            (&[("after_version", "7")], Ok(Some((7, 20)))),
            (&[("after_version", "7"), ("wait", "30s")], Ok(Some((7, 30)))),
            (&[("after_version", "7"), ("wait", "31s")], Err("wait")),
            (&[("after_version", "x")], Err("after_version")),
            (&[("wait", "1s")], Err("wait")),
        ] {
            let pairs = query.iter().map(|(name, value)| (name.to_string(), value.to_string()));
            let taken = VersionWait::take(&mut QueryParams::new(pairs.collect()));
            let want = want.map(|wait| {
                wait.map(|(after, seconds)| VersionWait {
                    after: Version::new(after),
                    wait: Duration::from_secs(seconds),
                })
            });
            let taken = taken.map_err(|problem| problem.parts().3.unwrap_or_default().to_owned());
            assert_eq!(taken, want.map_err(str::to_owned), "{query:?}");
        }
    }
}
