//! Routes about many tasks: create, touch and cancel them in one call.
//!
//! The response has one result per task, key or id, in order. One that is wrong does not affect
//! the others: it gets a problem as its result. Each owner is called once for all of its tasks.

use std::sync::Arc;

use axum::extract::State;
use http::HeaderMap;
use punctual_core::{
    IDEMPOTENCY_KEPT, IDEMPOTENCY_KEY_BYTES_MAX, Invalid, Namespace, PartitionId, TaskId, TaskKey,
    format_duration, partition_of,
};
use punctual_engine::{Command, Condition, EngineError, Reply, Scheduled, Subject};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};

use super::{
    CancelAnswer, TaskOrScheduled, at_most_one_time, checked, parse_task, push, scheduled_response,
};
use crate::actions::ActionDetail;
use crate::api::command_batch::{
    CommandBatch, expect_cancelled, expect_scheduled, next_result, unexpected_reply,
};
use crate::api::http::action_notes::with_detail;
use crate::api::http::preference::{AnswerDepth, PreferHeader};
use crate::api::http::request::{
    self, BATCH_BYTES_MAX, BATCH_MAX, JsonBody, NAMES_BYTES_MAX, PathNamespace, TasksBody,
    check_count,
};
use crate::api::http::response::{self, ApiResult};
use crate::api::idempotency::{Creation, IDEMPOTENCY_HEADER, Idempotency, bind_all, bind_one};
use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};
use crate::schema::{
    KeyText, TaskIdText, array, documented, exactly_one, reference, with_keywords,
};
use crate::task_form::{
    Delay, Interval, KeylessTask, NewTaskBody, TaskAnswer, TaskToSchedule, TimeValue,
};
use crate::touch_rules::TouchRules;

/// The result of creating many tasks.
#[derive(Debug, Serialize, ToSchema)]
struct Results {
    /// One per task that was sent, in order: the task, or its problem.
    #[schema(value_type = Vec<TaskOrProblem>)]
    results: Vec<Box<RawValue>>,
}

/// A task, or why it was not created.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(no_recursion)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) enum TaskOrProblem {
    #[schema(value_type = TaskAnswer)]
    Task(()),
    #[schema(value_type = Problem)]
    Problem(()),
}

/// One task, or many.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) enum NewTasks {
    #[schema(value_type = NewTaskBody)]
    One(()),
    #[schema(value_type = TaskList)]
    Many(()),
}

documented!(
    /// Tasks to create.
    TaskList,
    "NewTaskList",
    {
        let mut tasks = array(&reference::<NewTaskBody>(), 0, BATCH_MAX);
        tasks["description"] = "An entry that is not a task gets a problem as its result.".into();
        tasks["x-max-bytes"] = BATCH_BYTES_MAX.into();
        tasks
    }
);

/// The header that makes a request safe to repeat.
struct IdempotencyHeader;

impl IntoParams for IdempotencyHeader {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let description = format!(
            "For {}, the same body sent again with the same key creates nothing and gets the same \
             result; another body with it is refused.",
            format_duration(IDEMPOTENCY_KEPT)
        );
        let key = json!({
            "type": "string",
            "pattern": "^[!-~](?:[ -~]*[!-~])?$",
            "maxLength": IDEMPOTENCY_KEY_BYTES_MAX,
        });
        vec![request::header_parameter(&IDEMPOTENCY_HEADER, &description, &key)]
    }
}

/// The task that replaced another, or the results of many.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) enum TaskOrResults {
    #[schema(value_type = TaskOrScheduled)]
    Task(()),
    #[schema(value_type = Results)]
    Results(()),
}

/// Create tasks
///
/// Creates one task (a JSON object) or many (a JSON array, or NDJSON with one object per line). A
/// task with the key of another replaces it.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks", tag = "tasks", operation_id = "create_tasks",
    params(IdempotencyHeader, PreferHeader),
    request_body(content((NewTasks = "application/json"), (NewTaskBody = "application/x-ndjson"))),
    responses(
        (status = 201, description = "One task: it was created.", body = TaskOrScheduled),
        (status = 200, description =
            "Many tasks: one result each. One task: it replaced the task with its key.",
            body = TaskOrResults),
    )
)]
pub(crate) async fn create(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    idempotency: Option<Idempotency>,
    headers: HeaderMap,
    body: TasksBody,
) -> ApiResult {
    create_tasks(&broker, namespace, &headers, idempotency, body).await
}

pub(crate) async fn create_tasks(
    broker: &Arc<Broker>,
    namespace: Namespace,
    headers: &HeaderMap,
    idempotency: Option<Idempotency>,
    body: TasksBody,
) -> ApiResult {
    match body {
        TasksBody::One(body) => {
            let scheduled = create_one(broker, &namespace, &body, idempotency).await?;
            Ok(scheduled_response(&scheduled, AnswerDepth::wanted(headers)))
        }
        // Boxed, so that the future for one task stays small.
        body => Box::pin(create_many(Arc::clone(broker), namespace, body, idempotency)).await,
    }
}

async fn create_many(
    broker: Arc<Broker>,
    namespace: Namespace,
    body: TasksBody,
    idempotency: Option<Idempotency>,
) -> ApiResult {
    let reader = Arc::clone(&broker);
    // Parsing some megabytes would block the thread for other requests.
    let read = move || read_all(&body, &reader, &namespace, idempotency.as_ref());
    let creations = tokio::task::spawn_blocking(read).await.map_err(|_| EngineError::Stopped)??;
    let creations = bind_all(&broker.owners, creations).await;
    let mut sent = Vec::with_capacity(creations.len());
    let mut batch = CommandBatch::default();
    let partitions = broker.owners.partitions();
    let any = broker.owners.any_partition();
    for creation in creations {
        sent.push(creation.map(|creation| {
            let (partition, command) = creation.into_command(Condition::Always, partitions);
            batch.push(partition.unwrap_or(any), Command::Schedule(command));
        }));
    }
    let mut replies = batch.run(&broker.owners).await.into_iter();
    let results = sent.into_iter().map(|sent| {
        let result = sent.and_then(|()| {
            let scheduled = next_result(&mut replies).and_then(expect_scheduled)?;
            Ok(to_raw_value(&TaskAnswer::of(scheduled.task())))
        });
        result.unwrap_or_else(|problem| to_raw_value(&problem))
    });
    let results: Result<_, _> = results.collect();
    response::ok(&Results { results: results.expect("tasks and problems always serialize") })
}

/// Parses and checks all tasks of a body. One that is wrong has its problem as its result.
fn read_all(
    body: &TasksBody,
    broker: &Broker,
    namespace: &Namespace,
    idempotency: Option<&Idempotency>,
) -> Result<Vec<Result<Creation, Problem>>, Problem> {
    let pieces = match body {
        TasksBody::Lines(body) => split_lines(body),
        TasksBody::One(body) | TasksBody::Array(body) => split_array(body)?,
    };
    if pieces.len() > BATCH_MAX {
        return Err(Problem::too_many("tasks", BATCH_MAX));
    }
    let creations = pieces.into_iter().enumerate().map(|(index, piece)| {
        let task = checked(broker, parse_task(piece)?, namespace, None)?;
        Ok(Creation::new(task, index, piece, idempotency))
    });
    Ok(creations.collect())
}

async fn create_one(
    broker: &Broker,
    namespace: &Namespace,
    body: &[u8],
    idempotency: Option<Idempotency>,
) -> Result<Scheduled, Problem> {
    let task = checked(broker, parse_task(body)?, namespace, None)?;
    let creation = Creation::new(task, 0, body, idempotency.as_ref());
    let creation = bind_one::<Problem>(&broker.owners, creation).await?;
    let (partition, command) = creation.into_command(Condition::Always, broker.owners.partitions());
    let owner = partition
        .and_then(|partition| broker.owners.of(partition))
        .unwrap_or_else(|| broker.owners.any());
    Ok(owner.schedule(command).await?)
}

fn split_array(body: &[u8]) -> Result<Vec<&[u8]>, Problem> {
    let pieces: Vec<&RawValue> = serde_json::from_slice(body).map_err(|error| {
        Problem::invalid_body(format!("the body must be an array of tasks: {error}"), None)
    })?;
    Ok(pieces.into_iter().map(|piece| piece.get().as_bytes()).collect())
}

/// The lines that are not blank.
fn split_lines(body: &[u8]) -> Vec<&[u8]> {
    let lines = body.split(|byte| *byte == b'\n');
    lines.map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()).collect()
}

/// The tasks to touch and their new due time: at most one of `in`, `at` and `within`. Without one,
/// each watch is postponed by its `within`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct TouchManyBody<'a> {
    /// The keys of the tasks.
    #[schema(value_type = KeyList)]
    keys: Vec<String>,
    /// Due after this duration.
    #[serde(default)]
    #[schema(value_type = Option<Delay>)]
    r#in: Option<String>,
    /// Due at this time.
    #[serde(default)]
    at: Option<TimeValue>,
    /// Watches: due after this duration, this time only, instead of their own `within`.
    #[serde(default)]
    #[schema(value_type = Option<Interval>)]
    within: Option<String>,
    /// A task without a key. It is created for each key that no task has.
    #[serde(borrow, default)]
    #[schema(value_type = Option<KeylessTask>)]
    create: Option<&'a RawValue>,
}

documented!(
    /// A [`TouchManyBody`] with at most one new due time.
    TouchManyRequest,
    "TouchMany",
    with_keywords(&TouchManyBody::schema(), &json!({"anyOf": at_most_one_time()})),
    fields of TouchManyBody
);
documented!(
    /// The keys of some tasks.
    KeyList,
    "KeyList",
    array(&reference::<KeyText>(), 0, BATCH_MAX)
);
documented!(
    /// The ids of some tasks.
    IdList,
    "TaskIdList",
    array(&reference::<TaskIdText>(), 0, BATCH_MAX)
);

/// The result of touching many tasks.
#[derive(Debug, Serialize, ToSchema)]
struct TouchManyAnswer {
    /// How many tasks were touched.
    touched: usize,
    /// How many tasks were created.
    created: usize,
    /// Keys that no task has.
    missing: Vec<String>,
    /// Keys whose tasks could be neither touched nor created, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<KeyProblem>,
}

/// Why the task with a key was not touched.
#[derive(Debug, Serialize, ToSchema)]
struct KeyProblem {
    /// The key of the task.
    key: String,
    /// Why it was not touched.
    problem: Problem,
}

/// Touch many tasks
///
/// Touches tasks by their keys, and creates those that are missing if `create` is given or a rule
/// says what to create.
#[utoipa::path(
    post, path = "/v1/{namespace}/touch", tag = "tasks", operation_id = "touch_tasks",
    request_body = TouchManyRequest,
    responses((
        status = 200, description = "How many were touched or created, and which were not.",
        body = TouchManyAnswer,
    ))
)]
pub(crate) async fn touch(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    headers: HeaderMap,
    JsonBody(body): JsonBody<NAMES_BYTES_MAX>,
) -> ApiResult {
    let body: TouchManyBody<'_> = request::json(&body, "a list of keys")?;
    if body.create.is_some() {
        broker.tokens.check_creates(&headers, &namespace)?;
    }
    let count = body.keys.len();
    check_count("keys", count)?;
    let push = push(body.r#in.as_deref(), body.at.as_ref(), body.within.as_deref())?;
    let keys = body.keys.iter().enumerate().map(|(index, key)| {
        let named = |invalid: Invalid| Invalid::new(format!("keys[{index}]"), invalid.problem);
        TaskKey::new(key).map_err(named)
    });
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let template =
        body.create.map(|create| Template::check(&broker, create.get(), &namespace)).transpose()?;
    let mut answer =
        TouchManyAnswer { touched: 0, created: 0, missing: Vec::new(), problems: Vec::new() };
    let touch = |key: &TaskKey| Command::Touch(Subject::Key(namespace.clone(), key.clone()), push);
    let mut missing = run_each(&broker, &namespace, keys, touch, &mut answer).await;
    if let Some(template) = template {
        let create = |key: &TaskKey| {
            Command::Schedule(template.with_key(key).into_command(Condition::Absent, None))
        };
        // Another caller may have created some of them meanwhile; those are touched.
        let exist = run_each(&broker, &namespace, missing, create, &mut answer).await;
        missing = run_each(&broker, &namespace, exist, touch, &mut answer).await;
    } else if !missing.is_empty() {
        let rules = TouchRules::read(&broker, &namespace).await?;
        let (ruled, others) = rules.split(missing);
        let create = |key: &TaskKey| rules.create(key).unwrap_or_else(|| touch(key));
        let exist = run_each(&broker, &namespace, ruled, create, &mut answer).await;
        missing = run_each(&broker, &namespace, exist, touch, &mut answer).await;
        missing.extend(others);
    }
    answer.missing = missing.iter().map(|key| key.as_str().to_owned()).collect();
    let did = ActionDetail::of_many(count, answer.touched + answer.created);
    Ok(with_detail(response::ok(&answer)?, did))
}

/// Runs a command for each key and adds the results to `answer`. Returns the keys whose task does
/// not exist (touch) or exists already (create).
async fn run_each(
    broker: &Broker,
    namespace: &Namespace,
    keys: Vec<TaskKey>,
    command: impl Fn(&TaskKey) -> Command,
    answer: &mut TouchManyAnswer,
) -> Vec<TaskKey> {
    let mut batch = CommandBatch::default();
    for key in &keys {
        batch.push(partition_of(namespace, key, broker.owners.partitions()), command(key));
    }
    let mut others = Vec::new();
    for (key, result) in keys.into_iter().zip(batch.run(&broker.owners).await) {
        match result {
            Ok(Reply::Touched { .. }) => answer.touched += 1,
            Ok(Reply::Scheduled(Scheduled::Created(_))) => answer.created += 1,
            Err(EngineError::NotFound | EngineError::Exists(_)) => others.push(key),
            failed => {
                let error = failed.map_or_else(|error| error, |reply| unexpected_reply(&reply));
                let problem = Problem::of_task(error, TaskRef { namespace, name: key.as_str() });
                answer.problems.push(KeyProblem { key: key.as_str().to_owned(), problem });
            }
        }
    }
    others
}

/// The task that missing ones are created from; it has no key.
struct Template(TaskToSchedule);

impl Template {
    fn check(broker: &Broker, json: &str, namespace: &Namespace) -> Result<Self, Problem> {
        let within = |problem: Problem| problem.within("create");
        let body = parse_task(json.as_bytes()).map_err(within)?;
        let task = checked(broker, body, namespace, None).map_err(within)?;
        if task.new_task.key.is_some() {
            return Err(
                Invalid::new("create.key", "must be left out; the keys are in `keys`").into()
            );
        }
        Ok(Self(task))
    }

    fn with_key(&self, key: &TaskKey) -> TaskToSchedule {
        let mut task = self.0.clone();
        task.new_task.key = Some(key.clone());
        task
    }
}

/// The tasks to cancel: exactly one of `keys` and `ids`. An entry that is not a key or an id gets a
/// problem as its result.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct CancelManyBody {
    /// The keys of the tasks.
    #[serde(default)]
    #[schema(value_type = Option<KeyList>)]
    keys: Option<Vec<String>>,
    /// The ids of the tasks.
    #[serde(default)]
    #[schema(value_type = Option<IdList>)]
    ids: Option<Vec<String>>,
}

documented!(
    /// A [`CancelManyBody`] with exactly one field.
    CancelManyRequest,
    "CancelMany",
    with_keywords(
        &CancelManyBody::schema(),
        &json!({"oneOf": exactly_one(&[
            ("keys", json!({"type": "array"})),
            ("ids", json!({"type": "array"})),
        ])}),
    ),
    fields of CancelManyBody
);

/// The result of cancelling many tasks.
#[derive(Debug, Serialize, ToSchema)]
struct CancelManyAnswer {
    /// One per key or id, in order.
    results: Vec<CancelManyResult>,
}

/// The result for one key or id.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CancelResult)]
struct CancelManyResult {
    /// The key as it was sent, if tasks were given by key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// The id as it was sent, if tasks were given by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(flatten)]
    outcome: CancelOutcome,
}

/// The result of the cancel, or why it failed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum CancelOutcome {
    Answer(CancelAnswer),
    Problem { problem: Problem },
}

/// Cancel many tasks
///
/// Ends tasks before their next fires, by their keys or by their ids.
#[utoipa::path(
    post, path = "/v1/{namespace}/cancel", tag = "tasks", operation_id = "cancel_tasks",
    request_body = CancelManyRequest,
    responses((status = 200, description = "One result each.", body = CancelManyAnswer))
)]
pub(crate) async fn cancel(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    JsonBody(body): JsonBody<NAMES_BYTES_MAX>,
) -> ApiResult {
    let body: CancelManyBody = request::json(&body, "a list of keys or ids")?;
    let (names, by_key) = match (body.keys, body.ids) {
        (Some(keys), None) => (keys, true),
        (None, Some(ids)) => (ids, false),
        _ => {
            let problem = "exactly one of `keys` and `ids` must be given";
            return Err(Invalid::new("keys", problem).into());
        }
    };
    check_count(if by_key { "keys" } else { "ids" }, names.len())?;
    let mut batch = CommandBatch::default();
    let mut sent = Vec::with_capacity(names.len());
    for name in &names {
        let subject = if by_key {
            subject_of_key(&broker, &namespace, name)
        } else {
            subject_of_id(&namespace, name)
        };
        sent.push(subject.map(|(partition, subject)| {
            batch.push(partition, Command::Cancel(subject));
        }));
    }
    let mut replies = batch.run(&broker.owners).await.into_iter();
    let results = sent.into_iter().zip(&names).map(|(sent, name)| {
        let outcome = match sent.map(|()| next_result(&mut replies).and_then(expect_cancelled)) {
            Err(invalid) => CancelOutcome::Problem { problem: invalid.into() },
            Ok(Ok(cancelled)) => CancelOutcome::Answer(CancelAnswer::of(cancelled)),
            Ok(Err(EngineError::NotFound)) => CancelOutcome::Answer(CancelAnswer::NotFound),
            Ok(Err(error)) => {
                let task = TaskRef { namespace: &namespace, name };
                CancelOutcome::Problem { problem: Problem::of_task(error, task) }
            }
        };
        let (key, id) =
            if by_key { (Some(name.clone()), None) } else { (None, Some(name.clone())) };
        CancelManyResult { key, id, outcome }
    });
    let results: Vec<CancelManyResult> = results.collect();
    let is_cancelled = |result: &&CancelManyResult| {
        matches!(result.outcome, CancelOutcome::Answer(CancelAnswer::Cancelled))
    };
    let cancelled = results.iter().filter(is_cancelled).count();
    let did = ActionDetail::of_many(names.len(), cancelled);
    Ok(with_detail(response::ok(&CancelManyAnswer { results })?, did))
}

fn subject_of_key(
    broker: &Broker,
    namespace: &Namespace,
    name: &str,
) -> Result<(PartitionId, Subject), Invalid> {
    let key = TaskKey::new(name)?;
    let partition = partition_of(namespace, &key, broker.owners.partitions());
    Ok((partition, Subject::Key(namespace.clone(), key)))
}

fn subject_of_id(namespace: &Namespace, name: &str) -> Result<(PartitionId, Subject), Invalid> {
    let id: TaskId = name.parse().map_err(|error| Invalid::new("ids", format!("{error}")))?;
    Ok((id.partition(), Subject::Id(namespace.clone(), id)))
}
