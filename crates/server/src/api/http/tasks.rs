//! Calls about one task: `/v1/{namespace}/tasks/{key-or-id}`.
//!
//! In: requests, as untrusted as they come. Out: commands to the owner of the task, and its answers.
//! Next door: `batch` (many tasks in one call), `list`, `fires` (history).

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use punctual_core::{
    Clock as _, DeadLetter, Due, FireEnd, FireRecord, Invalid, Namespace, NewTask, Schedule, Task,
    TaskId, TaskKey, TaskState, Version,
};
use punctual_engine::{
    Cancelled, Command, Condition, EngineError, Push, Reply, ScheduleCommand, Scheduled, Subject,
};
use punctual_store::TaskStore as _;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::error::Problem;
use super::request::{self, BODY_BYTES_MAX, Named, Sent};
use super::task::{EndedTask, Instant, TaskAnswer, TaskBody, duration};
use super::when::check_fires;
use crate::broker::Broker;
use crate::owners::{Door, Owners};

/// What came of a cancel.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
pub(crate) enum CancelAnswer {
    /// It will never fire.
    Cancelled,
    /// Too late: this attempt is under way.
    Firing { attempt: u16 },
    /// Too late: it has fired, then.
    AlreadyFired { fired_at: String },
    /// In a list only: there is no such task.
    NotFound,
}

/// To when a task is moved.
#[derive(Debug, Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "a JSON object")]
#[schema(as = Touch)]
struct TouchBody {
    r#in: Option<String>,
    at: Option<Instant>,
    /// For this once, instead of what the watch says.
    within: Option<String>,
}

/// A task that was touched, and has fired since.
#[derive(Debug, Serialize)]
struct TouchedAnswer {
    fire_at: String,
    version: u64,
}

/// Creates a task, or replaces the one that the key names.
#[utoipa::path(
    put, path = "/v1/{namespace}/tasks/{key}", tag = "tasks", request_body = TaskBody,
    params(
        ("if-none-match" = Option<String>, Header, description = "`*`: create only"),
        ("if-match" = Option<String>, Header, description = "a version in quotes: replace only that"),
    ),
    responses(
        (status = 201, description = "created", body = TaskAnswer),
        (status = 200, description = "replaced", body = TaskAnswer),
    )
)]
pub(crate) async fn replace(
    State(broker): State<Arc<Broker>>,
    Named(namespace, key): Named,
    headers: HeaderMap,
    Sent(body): Sent<BODY_BYTES_MAX>,
) -> Answer {
    let key = TaskKey::new(&key)?;
    let condition = condition(&headers)?;
    let owner = broker.owners.of_key(&namespace, &key);
    let new_task = checked(&broker, TaskBody::parse(&body)?, &namespace, Some(key))?;
    match owner
        .schedule(ScheduleCommand { new_task: new_task.into(), condition, receipt: None })
        .await
    {
        Ok(scheduled) => Ok(scheduled_response(&scheduled)),
        // With `If-Match`, a task that is not there has not got that version either.
        Err(EngineError::NotFound) => Err(EngineError::OtherVersion(Version::new(0)).into()),
        Err(error) => Err(error.into()),
    }
}

/// Shows a task; by its id also one that has ended.
#[utoipa::path(
    get, path = "/v1/{namespace}/tasks/{key}", tag = "tasks",
    responses((status = 200, description = "the task", body = TaskAnswer))
)]
pub(crate) async fn show(
    State(broker): State<Arc<Broker>>,
    Named(namespace, name): Named,
) -> Answer {
    for (owner, subject) in candidates(&broker.owners, &namespace, &name)? {
        match owner.get(subject).await {
            Err(EngineError::NotFound) => {}
            Ok(task) => return Ok(answer::task(StatusCode::OK, &task)),
            Err(error) => return Err(error.into()),
        }
    }
    match ended(&broker, &namespace, &name).await? {
        Some((_, Some(letter))) => answer::ok(&TaskAnswer::in_state(&letter.task, TaskState::Dead)),
        Some((record, None)) => answer::ok(&EndedTask::of(&record)),
        None => Err(EngineError::NotFound.into()),
    }
}

/// Stops a task before its next fire.
#[utoipa::path(
    delete, path = "/v1/{namespace}/tasks/{key}", tag = "tasks",
    responses((status = 200, description = "what came of it", body = CancelAnswer))
)]
pub(crate) async fn cancel(
    State(broker): State<Arc<Broker>>,
    Named(namespace, name): Named,
) -> Answer {
    for (owner, subject) in candidates(&broker.owners, &namespace, &name)? {
        match owner.cancel(subject).await {
            Err(EngineError::NotFound) => {}
            Ok(cancelled) => return answer::ok(&CancelAnswer::of(cancelled)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(EngineError::NotFound.into())
}

/// Moves the next fire of a task.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks/{key}/touch", tag = "tasks", request_body = TouchBody,
    responses((status = 200, description = "the task", body = TaskAnswer))
)]
pub(crate) async fn touch(
    State(broker): State<Arc<Broker>>,
    Named(namespace, name): Named,
    Sent(body): Sent<BODY_BYTES_MAX>,
) -> Answer {
    let body: TouchBody = request::json_or_default(&body, "a touch")?;
    let push = push(body.r#in.as_deref(), body.at.as_ref(), body.within.as_deref())?;
    for (owner, subject) in candidates(&broker.owners, &namespace, &name)? {
        let commands = vec![Command::Touch(subject.clone(), push), Command::Get(subject)];
        let mut told = owner.call(commands).await?.into_iter();
        match (told.next(), told.next()) {
            (Some(Err(EngineError::NotFound)), _) => {}
            (Some(Err(error)), _) => return Err(error.into()),
            (_, Some(Ok(Reply::Task(task)))) => return Ok(answer::task(StatusCode::OK, &task)),
            // Moved to a time that had come, it may be over before it could be looked at.
            (Some(Ok(Reply::Touched { fire_at, version })), _) => {
                let (fire_at, version) = (fire_at.to_string(), version.get());
                return answer::ok(&TouchedAnswer { fire_at, version });
            }
            _ => return Err(EngineError::Stopped.into()),
        }
    }
    Err(EngineError::NotFound.into())
}

/// Lets a task wait until it is resumed.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks/{key}/pause", tag = "tasks",
    responses((status = 200, description = "the task", body = TaskAnswer))
)]
pub(crate) async fn pause(State(broker): State<Arc<Broker>>, name: Named) -> Answer {
    change(&broker, name, Command::Pause).await
}

/// Lets a paused task go on.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks/{key}/resume", tag = "tasks",
    responses((status = 200, description = "the task", body = TaskAnswer))
)]
pub(crate) async fn resume(State(broker): State<Arc<Broker>>, name: Named) -> Answer {
    change(&broker, name, Command::Resume).await
}

/// Fires a task now, once, besides its schedule.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks/{key}/fire", tag = "tasks",
    responses((status = 200, description = "the task", body = TaskAnswer))
)]
pub(crate) async fn fire(State(broker): State<Arc<Broker>>, name: Named) -> Answer {
    change(&broker, name, Command::Fire).await
}

async fn change(
    broker: &Broker,
    Named(namespace, name): Named,
    command: fn(Subject) -> Command,
) -> Answer {
    for (owner, subject) in candidates(&broker.owners, &namespace, &name)? {
        match owner.task(command(subject)).await {
            Err(EngineError::NotFound) => {}
            Ok(task) => return Ok(answer::task(StatusCode::OK, &task)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(EngineError::NotFound.into())
}

/// A task as sent, checked. Everything that is scheduled comes through here.
pub(super) fn checked(
    broker: &Broker,
    body: TaskBody<'_>,
    namespace: &Namespace,
    key: Option<TaskKey>,
) -> Result<NewTask, Problem> {
    let new_task = body.into_new_task(namespace.clone(), key)?;
    check_fires(&new_task.schedule, broker.clock.now())?;
    broker.guard.check_target(&new_task.target)?;
    Ok(new_task)
}

/// Where a touch moves a task, as it was said.
pub(super) fn push(
    r#in: Option<&str>,
    at: Option<&Instant>,
    within: Option<&str>,
) -> Result<Push, Problem> {
    let due = match (r#in, at, within) {
        (None, None, None) => return Ok(Push::Within),
        (Some(delay), None, None) => {
            let delay = duration("in", delay)?;
            Schedule::Once(Due::In(delay)).check()?;
            Due::In(delay)
        }
        (None, Some(at), None) => Due::At(at.to_timestamp("at")?),
        (None, None, Some(within)) => {
            let within = duration("within", within)?;
            Schedule::watch(within).check()?;
            Due::In(within)
        }
        _ => {
            let problem = "at most one of `in`, `at` and `within` must be given";
            return Err(Invalid::new("in", problem).into());
        }
    };
    Ok(Push::To(due))
}

/// Whom a name in a path may mean: a key first, because keys are the caller's own and may look like
/// anything, then an id.
pub(super) fn candidates<'a>(
    owners: &'a Arc<Owners>,
    namespace: &Namespace,
    name: &str,
) -> Result<Vec<(Door<'a>, Subject)>, Problem> {
    let key = TaskKey::new(name)?;
    let by_key = owners.of_key(namespace, &key);
    let mut candidates = vec![(by_key, Subject::Key(namespace.clone(), key))];
    if let Ok(id) = name.parse::<TaskId>()
        && let Some(by_id) = owners.of(id.partition())
    {
        candidates.push((by_id, Subject::Id(namespace.clone(), id)));
    }
    Ok(candidates)
}

/// A living task by its name.
pub(super) async fn living(
    broker: &Broker,
    namespace: &Namespace,
    name: &str,
) -> Result<Option<Task>, Problem> {
    for (owner, subject) in candidates(&broker.owners, namespace, name)? {
        match owner.get(subject).await {
            Err(EngineError::NotFound) => {}
            Ok(task) => return Ok(Some(task)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// How a task with an id ended, and its dead letter if that was its end.
async fn ended(
    broker: &Broker,
    namespace: &Namespace,
    name: &str,
) -> Result<Option<(FireRecord, Option<DeadLetter>)>, Problem> {
    let Ok(id) = name.parse::<TaskId>() else {
        return Ok(None);
    };
    if broker.owners.of(id.partition()).is_none() {
        return Ok(None);
    }
    let records = broker.store.history(id.partition(), id, 1).await?;
    let Some(record) = records.into_iter().find(|record| record.namespace == *namespace) else {
        return Ok(None);
    };
    let letter = match record.end {
        FireEnd::Dead(_) => broker.store.dead_letter(id.partition(), record.fire_id).await?,
        _ => None,
    };
    Ok(Some((record, letter)))
}

impl CancelAnswer {
    pub(super) fn of(cancelled: Cancelled) -> Self {
        match cancelled {
            Cancelled::Cancelled => Self::Cancelled,
            Cancelled::Firing(attempt) => Self::Firing { attempt: attempt.get() },
            Cancelled::AlreadyFired(at) => Self::AlreadyFired { fired_at: at.to_string() },
        }
    }
}

/// `If-None-Match: *` creates only, `If-Match: "VERSION"` replaces only that version.
fn condition(headers: &HeaderMap) -> Result<Condition, Problem> {
    let none_match = request::header(headers, &IF_NONE_MATCH)?;
    let matches = request::header(headers, &IF_MATCH)?;
    match (none_match, matches) {
        (None, None) => Ok(Condition::Always),
        (Some("*"), None) => Ok(Condition::Absent),
        (None, Some(version)) => {
            let number = version.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let number = number.and_then(|number| number.parse().ok()).ok_or_else(|| {
                let detail = "If-Match must be one version in quotes, like \"3\"".to_owned();
                Problem::request(detail, Some("if-match".to_owned()))
            })?;
            Ok(Condition::Version(Version::new(number)))
        }
        (Some(_), None) => {
            let detail = "If-None-Match must be *".to_owned();
            Err(Problem::request(detail, Some("if-none-match".to_owned())))
        }
        (Some(_), Some(_)) => {
            let detail = "If-Match and If-None-Match exclude each other".to_owned();
            Err(Problem::request(detail, Some("if-match".to_owned())))
        }
    }
}

pub(super) fn scheduled_response(scheduled: &Scheduled) -> Response {
    match scheduled {
        Scheduled::Created(task) => answer::task(StatusCode::CREATED, task),
        Scheduled::Replaced(task) => answer::task(StatusCode::OK, task),
    }
}
