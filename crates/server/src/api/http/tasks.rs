//! Routes about one task: `/v1/{namespace}/tasks/{key-or-id}`.
//!
//! Each route sends one command to the owner of the task and returns its reply as JSON. `batch`
//! has the routes about many tasks, `list` lists them, `fires` shows the history of one, and
//! `version_wait` waits for a change of one.

pub(super) mod batch;
pub(super) mod fires;
pub(super) mod list;
mod version_wait;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use punctual_core::{Clock as _, Due, Invalid, Namespace, Schedule, Task, TaskKey, Version};
use punctual_engine::{
    Cancelled, Command, Condition, EngineError, Reply, Scheduled, Subject, TouchTo,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};

use super::preference::{AnswerDepth, PreferHeader};
use super::request::{self, BODY_BYTES_MAX, JsonBody, PathName, QueryParams};
use super::response::{self, ApiResult};
use crate::api::command_batch::{expect_scheduled, next_result, unexpected_reply};
use crate::api::find_task::{NamedTask, candidates, command_task};
use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};
use crate::schema::{TaskIdText, all_absent, documented, reference, with_keywords};
use crate::task_form::{
    Delay, EndedTask, InstantText, Interval, KeylessTask, TaskAnswer, TaskBody, TaskToSchedule,
    TimeValue, check_fires, parse_duration_field,
};
use crate::touch_rules::TouchRules;
use version_wait::{AfterVersion, VersionWait, VersionWaitText, find_changed};

/// The result of a cancel.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
pub(crate) enum CancelAnswer {
    /// The task will not fire.
    Cancelled,
    /// Too late: this attempt is in flight. No further attempt follows.
    Firing { attempt: u32 },
    /// Too late: the task fired at this time.
    AlreadyFired {
        #[schema(value_type = InstantText)]
        fired_at: String,
    },
    /// No task has this key or id. Only in the results of many.
    NotFound,
}

/// The new due time of a task: at most one field. Without one, a watch is postponed by its
/// `within`.
#[derive(Debug, Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "a JSON object")]
struct TouchBody {
    /// Due after this duration.
    #[schema(value_type = Option<Delay>)]
    r#in: Option<String>,
    /// Due at this time.
    at: Option<TimeValue>,
    /// A watch: due after this duration, this time only, instead of its own `within`.
    #[schema(value_type = Option<Interval>)]
    within: Option<String>,
}

documented!(
    /// A [`TouchBody`] with at most one field.
    TouchRequest,
    "Touch",
    with_keywords(&TouchBody::schema(), &json!({"anyOf": at_most_one_time()})),
    fields of TouchBody
);

/// In each alternative, all but one of `in`, `at` and `within` are absent.
fn at_most_one_time() -> serde_json::Value {
    json!([["at", "within"], ["in", "within"], ["in", "at"]].map(|two| all_absent(two.into_iter())))
}

/// A task that was touched: a minimal answer, or one about a task that has ended before it could be
/// read.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TouchedTask)]
struct TouchedAnswer {
    /// When the task was due.
    #[schema(value_type = InstantText)]
    fire_at: String,
    /// Counts the changes that callers made to the task.
    version: u64,
}

/// A task. The history of one that has ended has only some of its fields.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) enum TaskOrEnded {
    #[schema(value_type = TaskAnswer)]
    Task(()),
    #[schema(value_type = EndedTask)]
    Ended(()),
}

/// A task that was created or replaced, as `Prefer: return=minimal` asks for it.
#[derive(Debug, Serialize, ToSchema)]
struct ScheduledTask {
    /// The id that the broker gave the task.
    #[schema(value_type = TaskIdText)]
    id: String,
    /// When the task is due next.
    #[schema(value_type = InstantText)]
    fire_at: String,
    /// Counts the changes that callers made to the task.
    version: u64,
}

impl ScheduledTask {
    fn of(task: &Task) -> Self {
        let (id, fire_at) = (task.id.to_string(), task.fire_at.to_string());
        Self { id, fire_at, version: task.version.get() }
    }
}

documented!(
    /// A task, or the fields of it that a minimal answer has.
    TaskOrScheduled,
    "TaskOrScheduled",
    json!({"anyOf": [reference::<TaskAnswer>(), reference::<ScheduledTask>()]}),
    uses ScheduledTask
);
documented!(
    /// A task. Of one that became due at once and has ended, only some fields are known.
    TaskOrTouched,
    "TaskOrTouched",
    json!({"anyOf": [reference::<TaskAnswer>(), reference::<TouchedAnswer>()]}),
    uses TouchedAnswer
);

/// The conditions of a PUT.
struct ConditionHeaders;

impl IntoParams for ConditionHeaders {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let none_match = json!({"type": "string", "enum": ["*"]});
        let matches = json!({"type": "string", "pattern": "^\"[0-9]{1,19}\"$"});
        vec![
            request::header_parameter(
                &IF_NONE_MATCH,
                "Create the task only if the key is free. Not together with `if-match`.",
                &none_match,
            ),
            request::header_parameter(
                &IF_MATCH,
                "A version in quotes: replace the task only if it has this version.",
                &matches,
            ),
        ]
    }
}

/// Create or replace a task
///
/// Creates a task with this key, or replaces the task that has it.
#[utoipa::path(
    put, path = "/v1/{namespace}/tasks/{key}", tag = "tasks", operation_id = "put_task",
    request_body = KeylessTask, params(ConditionHeaders, PreferHeader),
    responses(
        (status = 201, description = "The task was created.", body = TaskOrScheduled,
            headers(("etag", description = "The version of the task."))),
        (status = 200, description = "The task was replaced.", body = TaskOrScheduled,
            headers(("etag", description = "The version of the task."))),
    )
)]
pub(crate) async fn replace(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, key): PathName,
    headers: HeaderMap,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    replace_task(&broker, &namespace, &key, &headers, &body).await
}

pub(super) async fn replace_task(
    broker: &Broker,
    namespace: &Namespace,
    name: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> ApiResult {
    let key = TaskKey::new(name)?;
    let condition = condition(headers)?;
    let owner = broker.owners.of_key(namespace, &key);
    let to_schedule = checked(broker, parse_task(body)?, namespace, Some(key))?;
    let task = TaskRef { namespace, name };
    match owner.schedule(to_schedule.into_command(condition, None)).await {
        Ok(scheduled) => Ok(scheduled_response(&scheduled, AnswerDepth::wanted(headers))),
        // Only `If-Match` needs a task; one that does not exist has another version, too.
        Err(EngineError::NotFound) => Err(Problem::no_version(task)),
        Err(error) => Err(Problem::of_task(error, task)),
    }
}

/// Show a task
///
/// Shows a task by its key or id. A task that has ended is shown as long as its history is
/// retained; a key that names no living task shows the task that had it last.
#[utoipa::path(
    get, path = "/v1/{namespace}/tasks/{key}", tag = "tasks", operation_id = "get_task",
    params(
        ("after_version" = inline(Option<AfterVersion>), Query, description =
            "Wait until the task has another version than this one, or has ended."),
        ("wait" = inline(Option<VersionWaitText>), Query, description =
            "How long to wait for that; then the task is shown as it is. Default: 20 seconds."),
    ),
    responses((status = 200, description = "The task.", body = TaskOrEnded))
)]
pub(crate) async fn show(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, name): PathName,
    mut params: QueryParams,
) -> ApiResult {
    let wait = VersionWait::take(&mut params)?;
    params.end()?;
    let task = TaskRef { namespace: &namespace, name: &name };
    match find_changed(&broker, task, wait).await? {
        NamedTask::Living(found) => Ok(response::task(StatusCode::OK, &found)),
        NamedTask::Ended(ended) => match &ended.letter {
            Some(letter) => response::ok(&TaskAnswer::of_dead_letter(letter)),
            None => response::ok(&EndedTask::of(&ended.record)),
        },
    }
}

/// Cancel a task
///
/// Ends a task before its next fire.
#[utoipa::path(
    delete, path = "/v1/{namespace}/tasks/{key}", tag = "tasks", operation_id = "cancel_task",
    responses((
        status = 200, description = "Whether the task was cancelled in time.",
        body = CancelAnswer,
    ))
)]
pub(crate) async fn cancel(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, name): PathName,
) -> ApiResult {
    cancel_task(&broker, &namespace, &name).await
}

pub(super) async fn cancel_task(broker: &Broker, namespace: &Namespace, name: &str) -> ApiResult {
    let task = TaskRef { namespace, name };
    for (owner, subject) in candidates(&broker.owners, task)? {
        match owner.cancel(subject).await {
            Err(EngineError::NotFound) => {}
            Ok(cancelled) => return response::ok(&CancelAnswer::of(cancelled)),
            Err(error) => return Err(Problem::of_task(error, task)),
        }
    }
    Err(Problem::task_not_found(task))
}

/// Touch a task
///
/// Postpones a watch by its `within`, or moves the next fire of a watch or of a task that fires
/// once. Tasks with `cron` or `every` cannot be touched. If no task has the key and a rule is for
/// its prefix, the watch of the rule is created.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks/{key}/touch", tag = "tasks", operation_id = "touch_task",
    request_body = TouchRequest, params(PreferHeader),
    responses(
        (status = 200, description = "The task.", body = TaskOrTouched),
        (status = 201, description = "A rule has created the task.", body = TaskOrScheduled),
    )
)]
pub(crate) async fn touch(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, name): PathName,
    headers: HeaderMap,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    touch_task(&broker, &namespace, &name, &headers, &body).await
}

pub(super) async fn touch_task(
    broker: &Broker,
    namespace: &Namespace,
    name: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> ApiResult {
    let push = touch_to(body)?;
    let task = TaskRef { namespace, name };
    let depth = AnswerDepth::wanted(headers);
    if let Some(response) = touch_existing(broker, task, push, depth).await? {
        return Ok(response);
    }
    let created = match create_by_rule(broker, task, depth).await {
        // Another caller has created it meanwhile.
        Err(EngineError::Exists(_)) => touch_existing(broker, task, push, depth).await?,
        created => created.map_err(|error| Problem::of_task(error, task))?,
    };
    created.ok_or_else(|| Problem::task_not_found(task))
}

/// Touches a task. Returns `None` if there is none.
async fn touch_existing(
    broker: &Broker,
    task: TaskRef<'_>,
    push: TouchTo,
    depth: AnswerDepth,
) -> Result<Option<Response>, Problem> {
    for (owner, subject) in candidates(&broker.owners, task)? {
        let mut commands = vec![Command::Touch(subject.clone(), push)];
        commands.extend((depth == AnswerDepth::Whole).then_some(Command::Get(subject)));
        let mut results = owner.call(commands).await?.into_iter();
        match (next_result(&mut results), next_result(&mut results)) {
            (Err(EngineError::NotFound), _) => {}
            (Err(error), _) => return Err(Problem::of_task(error, task)),
            (_, Ok(Reply::Task(found))) => {
                return Ok(Some(response::task(StatusCode::OK, &found)));
            }
            // A minimal answer, or a task that became due at once and has ended before it was read.
            (Ok(Reply::Touched { fire_at, version }), _) => {
                let (fire_at, version) = (fire_at.to_string(), version.get());
                let response = response::ok(&TouchedAnswer { fire_at, version })?;
                return Ok(Some(depth.applied_to(response)));
            }
            (Ok(reply), _) => return Err(unexpected_reply(&reply).into()),
        }
    }
    Ok(None)
}

/// Creates the watch of a key that has no task. Returns `None` if no rule says what to create.
async fn create_by_rule(
    broker: &Broker,
    task: TaskRef<'_>,
    depth: AnswerDepth,
) -> Result<Option<Response>, EngineError> {
    let Ok(key) = TaskKey::new(task.name) else { return Ok(None) };
    let rules = TouchRules::read(broker, task.namespace).await?;
    let Some(create) = rules.create(&key) else { return Ok(None) };
    let mut results =
        broker.owners.of_key(task.namespace, &key).call(vec![create]).await?.into_iter();
    let scheduled = next_result(&mut results).and_then(expect_scheduled)?;
    Ok(Some(scheduled_response(&scheduled, depth)))
}

/// Pause a task
///
/// A paused task does not fire until it is resumed.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks/{key}/pause", tag = "tasks", operation_id = "pause_task",
    responses((status = 200, description = "The task.", body = TaskAnswer))
)]
pub(crate) async fn pause(State(broker): State<Arc<Broker>>, name: PathName) -> ApiResult {
    change(&broker, name, Command::Pause).await
}

/// Resume a task
///
/// Lets a paused task fire again.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks/{key}/resume", tag = "tasks", operation_id = "resume_task",
    responses((status = 200, description = "The task.", body = TaskAnswer))
)]
pub(crate) async fn resume(State(broker): State<Arc<Broker>>, name: PathName) -> ApiResult {
    change(&broker, name, Command::Resume).await
}

/// Fire a task now
///
/// Fires a task once, at once, in addition to its schedule.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks/{key}/fire", tag = "tasks", operation_id = "fire_task",
    responses((status = 200, description = "The task.", body = TaskAnswer))
)]
pub(crate) async fn fire(State(broker): State<Arc<Broker>>, name: PathName) -> ApiResult {
    change(&broker, name, Command::Fire).await
}

async fn change(
    broker: &Broker,
    PathName(namespace, name): PathName,
    command: fn(Subject) -> Command,
) -> ApiResult {
    let task = TaskRef { namespace: &namespace, name: &name };
    match command_task(broker, task, command).await? {
        Some(found) => Ok(response::task(StatusCode::OK, &found)),
        None => Err(Problem::task_not_found(task)),
    }
}

/// Parses a task; nothing is checked yet.
pub(crate) fn parse_task(body: &[u8]) -> Result<TaskBody<'_>, Problem> {
    request::json(body, "one task")
}

/// Checks a task: its fields, that it fires, and that its targets are allowed. Every task that is
/// scheduled over HTTP or by a source passes here.
pub(crate) fn checked(
    broker: &Broker,
    body: TaskBody<'_>,
    namespace: &Namespace,
    key: Option<TaskKey>,
) -> Result<TaskToSchedule, Problem> {
    let task = body.into_task(namespace.clone(), key)?;
    check_fires(&task.new_task.schedule, broker.clock.now())?;
    broker.guard.check_targets(&task.new_task)?;
    Ok(task)
}

/// Reads the body of a touch, which may be empty.
pub(crate) fn touch_to(body: &[u8]) -> Result<TouchTo, Problem> {
    let body: TouchBody = request::json_or_default(body, "the new due time")?;
    push(body.r#in.as_deref(), body.at.as_ref(), body.within.as_deref())
}

/// The new due time of a touch.
fn push(
    r#in: Option<&str>,
    at: Option<&TimeValue>,
    within: Option<&str>,
) -> Result<TouchTo, Problem> {
    let due = match (r#in, at, within) {
        (None, None, None) => return Ok(TouchTo::Within),
        (Some(delay), None, None) => {
            let delay = parse_duration_field("in", delay)?;
            Schedule::Once(Due::In(delay)).check()?;
            Due::In(delay)
        }
        (None, Some(at), None) => Due::At(at.to_timestamp("at")?),
        (None, None, Some(within)) => {
            let within = parse_duration_field("within", within)?;
            Schedule::watch(within).check()?;
            Due::In(within)
        }
        _ => {
            let problem = "at most one of `in`, `at` and `within` must be given";
            return Err(Invalid::new("in", problem).into());
        }
    };
    Ok(TouchTo::To(due))
}

impl CancelAnswer {
    fn of(cancelled: Cancelled) -> Self {
        match cancelled {
            Cancelled::Cancelled => Self::Cancelled,
            Cancelled::Firing(attempt) => Self::Firing { attempt: attempt.get() },
            Cancelled::AlreadyFired(at) => Self::AlreadyFired { fired_at: at.to_string() },
        }
    }
}

/// The condition of a PUT: `If-None-Match: *` only creates, `If-Match: "VERSION"` only replaces
/// that version.
fn condition(headers: &HeaderMap) -> Result<Condition, Problem> {
    let none_match = request::header(headers, &IF_NONE_MATCH)?;
    let matches = request::header(headers, &IF_MATCH)?;
    match (none_match, matches) {
        (None, None) => Ok(Condition::Always),
        (Some("*"), None) => Ok(Condition::Absent),
        (None, Some(version)) => {
            let number = version.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let number = number.and_then(|number| number.parse().ok()).ok_or_else(|| {
                let detail = "If-Match must be one version in quotes, like \"3\"";
                Problem::invalid_request(detail, Some("if-match".to_owned()))
            })?;
            Ok(Condition::Version(Version::new(number)))
        }
        (Some(_), None) => {
            let detail = "If-None-Match must be *";
            Err(Problem::invalid_request(detail, Some("if-none-match".to_owned())))
        }
        (Some(_), Some(_)) => {
            let detail = "If-Match and If-None-Match must not be given together";
            Err(Problem::invalid_request(detail, Some("if-match".to_owned())))
        }
    }
}

fn scheduled_response(scheduled: &Scheduled, depth: AnswerDepth) -> Response {
    let (status, task) = match scheduled {
        Scheduled::Created(task) => (StatusCode::CREATED, task),
        Scheduled::Replaced(task) => (StatusCode::OK, task),
    };
    match depth {
        AnswerDepth::Whole => response::task(status, task),
        AnswerDepth::Minimal => {
            depth.applied_to(response::task_as(status, task, &ScheduledTask::of(task)))
        }
    }
}
