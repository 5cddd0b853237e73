//! Calls about many tasks: created, touched or cancelled together.
//!
//! In: one body with many tasks or names. Out: one result each, in order. One that is wrong does not spoil the others: it has a
//! problem of its own where its result would be.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Invalid, Namespace, NewTask, PartitionId, TaskId, TaskKey, partition_of};
use punctual_engine::{
    Command, Condition, EngineError, Reply, ScheduleCommand, Scheduled, Subject,
};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::calls::Calls;
use super::error::Problem;
use super::idempotency::{Creation, Idempotency, bound, bound_one};
use super::request::{self, BATCH_MAX, In, Load, NAMES_BYTES_MAX, Sent, check_count};
use super::task::{Instant, TaskAnswer, TaskBody};
use super::tasks::{CancelAnswer, checked, push, scheduled_response};
use crate::broker::Broker;

/// One result for each task that was sent, in order.
#[derive(Debug, Serialize, ToSchema)]
struct Results {
    /// Each the task, or its problem.
    #[schema(value_type = Vec<TaskOrProblem>)]
    results: Vec<Box<RawValue>>,
}

/// A task, or what was wrong with it.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(no_recursion)]
#[expect(dead_code, reason = "for the document only: says what stands in the list")]
pub(crate) enum TaskOrProblem {
    #[schema(value_type = TaskAnswer)]
    Task(()),
    #[schema(value_type = Problem)]
    Problem(()),
}

/// One task, or many.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "for the document only: says what may be sent")]
pub(crate) enum NewTasks {
    #[schema(value_type = TaskBody)]
    One(()),
    #[schema(value_type = Vec<TaskBody>)]
    Many(()),
}

/// The task whose key named another, or the results of many.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "for the document only: says what is answered")]
pub(crate) enum TaskOrResults {
    #[schema(value_type = TaskAnswer)]
    Task(()),
    #[schema(value_type = Results)]
    Results(()),
}

/// Creates one task, or many: a JSON object, a JSON array, or NDJSON.
#[utoipa::path(
    post, path = "/v1/{namespace}/tasks", tag = "tasks",
    params(
        ("idempotency-key" = Option<String>, Header, description = "the same key with the same body creates once, for a day"),
    ),
    request_body(content((NewTasks = "application/json"), (TaskBody = "application/x-ndjson"))),
    responses(
        (status = 201, description = "one: created", body = TaskAnswer),
        (status = 200, description = "many: one result each; or one whose key named another", body = TaskOrResults),
    )
)]
pub(crate) async fn create(
    State(broker): State<Arc<Broker>>,
    In(namespace): In,
    idempotency: Option<Idempotency>,
    load: Load,
) -> Answer {
    match load {
        Load::One(body) => create_one(&broker, &namespace, &body, idempotency).await,
        // Boxed, so that one task does not carry the room for many.
        load => Box::pin(create_many(broker, namespace, load, idempotency)).await,
    }
}

async fn create_many(
    broker: Arc<Broker>,
    namespace: Namespace,
    load: Load,
    idempotency: Option<Idempotency>,
) -> Answer {
    let reader = Arc::clone(&broker);
    // Reading some megabytes takes a while, and others want the thread.
    let read = move || read_all(&load, &reader, &namespace, idempotency.as_ref());
    let creations = tokio::task::spawn_blocking(read).await.map_err(|_| EngineError::Stopped)??;
    let creations = bound(&broker.owners, creations).await;
    let mut problems = Vec::with_capacity(creations.len());
    let mut calls = Calls::default();
    let partitions = broker.owners.partitions();
    let any = broker.owners.any_partition();
    for creation in creations {
        problems.push(creation.map(|creation| {
            let (partition, order) = creation.order(Condition::Always, partitions);
            calls.push(partition.unwrap_or(any), Command::Schedule(order));
        }));
    }
    let mut told = calls.ask(&broker.owners).await.into_iter();
    let results = problems.into_iter().map(|problem| {
        let result = problem.and_then(|()| {
            let told = told.next().unwrap_or(Err(EngineError::Stopped))?;
            Ok(match told {
                Reply::Scheduled(scheduled) => to_raw_value(&TaskAnswer::of(scheduled.task())),
                told => unreachable!("another command's answer: {told:?}"),
            })
        });
        result.unwrap_or_else(|problem| to_raw_value(&problem))
    });
    let results: Result<_, _> = results.collect();
    answer::ok(&Results { results: results.expect("nothing in it can fail to be written") })
}

/// Reads all tasks of a body; one that is wrong has its problem in its place.
fn read_all(
    load: &Load,
    broker: &Broker,
    namespace: &Namespace,
    idempotency: Option<&Idempotency>,
) -> Result<Vec<Result<Creation, Problem>>, Problem> {
    let pieces = match load {
        Load::Lines(body) => pieces_of_lines(body),
        Load::One(body) | Load::Array(body) => pieces_of_array(body)?,
    };
    if pieces.len() > BATCH_MAX {
        return Err(Problem::too_many("tasks", BATCH_MAX));
    }
    let creations = pieces.into_iter().enumerate().map(|(index, piece)| {
        let new_task = checked(broker, TaskBody::parse(piece)?, namespace, None)?;
        Ok(Creation::new(new_task, index, piece, idempotency))
    });
    Ok(creations.collect())
}

async fn create_one(
    broker: &Broker,
    namespace: &Namespace,
    body: &[u8],
    idempotency: Option<Idempotency>,
) -> Answer {
    let new_task = checked(broker, TaskBody::parse(body)?, namespace, None)?;
    let creation = Creation::new(new_task, 0, body, idempotency.as_ref());
    let creation = bound_one::<Problem>(&broker.owners, creation).await?;
    let (partition, order) = creation.order(Condition::Always, broker.owners.partitions());
    let owner = partition
        .and_then(|partition| broker.owners.of(partition))
        .unwrap_or_else(|| broker.owners.any());
    Ok(scheduled_response(&owner.schedule(order).await?))
}

fn schedule(new_task: NewTask, condition: Condition) -> Command {
    Command::Schedule(ScheduleCommand { new_task: new_task.into(), condition, receipt: None })
}

fn pieces_of_array(body: &[u8]) -> Result<Vec<&[u8]>, Problem> {
    let pieces: Vec<&RawValue> = serde_json::from_slice(body)
        .map_err(|error| Problem::body(format!("not an array of tasks: {error}"), None))?;
    Ok(pieces.into_iter().map(|piece| piece.get().as_bytes()).collect())
}

/// The lines that are not empty.
fn pieces_of_lines(body: &[u8]) -> Vec<&[u8]> {
    let lines = body.split(|byte| *byte == b'\n');
    lines.map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()).collect()
}

/// Tasks to be moved.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = TouchMany)]
struct TouchManyBody<'a> {
    keys: Vec<String>,
    #[serde(default)]
    r#in: Option<String>,
    #[serde(default)]
    at: Option<Instant>,
    #[serde(default)]
    within: Option<String>,
    /// What keys that name no task are created from.
    #[serde(borrow, default)]
    #[schema(value_type = Option<TaskBody>)]
    create: Option<&'a RawValue>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
struct TouchManyAnswer {
    touched: usize,
    created: usize,
    /// Keys that name no task.
    missing: Vec<String>,
    /// Keys that could be neither touched nor created.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<KeyProblem>,
}

#[derive(Debug, Serialize, ToSchema)]
struct KeyProblem {
    key: String,
    problem: Problem,
}

/// Moves the next fires of many tasks, and creates those that are missing.
#[utoipa::path(
    post, path = "/v1/{namespace}/touch", tag = "tasks", request_body = TouchManyBody,
    responses((status = 200, description = "how many, and which not", body = TouchManyAnswer))
)]
pub(crate) async fn touch(
    State(broker): State<Arc<Broker>>,
    In(namespace): In,
    Sent(body): Sent<NAMES_BYTES_MAX>,
) -> Answer {
    let body: TouchManyBody<'_> = request::json(&body, "a list of keys")?;
    check_count("keys", body.keys.len())?;
    let push = push(body.r#in.as_deref(), body.at.as_ref(), body.within.as_deref())?;
    let keys = body.keys.iter().enumerate().map(|(index, key)| {
        let named = |invalid: Invalid| Invalid::new(format!("keys[{index}]"), invalid.problem);
        TaskKey::new(key).map_err(named)
    });
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let model =
        body.create.map(|create| Model::check(&broker, create.get(), &namespace)).transpose()?;
    let mut answer =
        TouchManyAnswer { touched: 0, created: 0, missing: Vec::new(), problems: Vec::new() };
    let touch = |key: &TaskKey| Command::Touch(Subject::Key(namespace.clone(), key.clone()), push);
    let mut missing = ask_each(&broker, &namespace, keys, touch, &mut answer).await;
    if let Some(model) = model {
        let create = |key: &TaskKey| schedule(model.named(key), Condition::Absent);
        // Somebody else may have created one meanwhile: then it is there to be touched.
        let exist = ask_each(&broker, &namespace, missing, create, &mut answer).await;
        missing = ask_each(&broker, &namespace, exist, touch, &mut answer).await;
    }
    answer.missing = missing.iter().map(|key| key.as_str().to_owned()).collect();
    answer::ok(&answer)
}

/// Asks the owners about all keys, and notes what came of it. Out: keys that the other command is for.
async fn ask_each(
    broker: &Broker,
    namespace: &Namespace,
    keys: Vec<TaskKey>,
    command: impl Fn(&TaskKey) -> Command,
    answer: &mut TouchManyAnswer,
) -> Vec<TaskKey> {
    let mut calls = Calls::default();
    for key in &keys {
        calls.push(partition_of(namespace, key, broker.owners.partitions()), command(key));
    }
    let mut others = Vec::new();
    for (key, told) in keys.into_iter().zip(calls.ask(&broker.owners).await) {
        match told {
            Ok(Reply::Touched { .. }) => answer.touched += 1,
            Ok(Reply::Scheduled(Scheduled::Created(_))) => answer.created += 1,
            Err(EngineError::NotFound | EngineError::Exists(_)) => others.push(key),
            Ok(told) => unreachable!("another command's answer: {told:?}"),
            Err(error) => {
                let key = key.as_str().to_owned();
                answer.problems.push(KeyProblem { key, problem: error.into() });
            }
        }
    }
    others
}

/// A task that others are made after.
struct Model(NewTask);

impl Model {
    fn check(broker: &Broker, json: &str, namespace: &Namespace) -> Result<Self, Problem> {
        let within = |problem: Problem| problem.within("create");
        let body = TaskBody::parse(json.as_bytes()).map_err(within)?;
        let new_task = checked(broker, body, namespace, None).map_err(within)?;
        if new_task.key.is_some() {
            return Err(Invalid::new("create.key", "must be left out; `keys` has them").into());
        }
        Ok(Self(new_task))
    }

    fn named(&self, key: &TaskKey) -> NewTask {
        NewTask { key: Some(key.clone()), ..self.0.clone() }
    }
}

/// Tasks to be cancelled, by one or the other.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
#[schema(as = CancelMany)]
struct CancelManyBody {
    #[serde(default)]
    keys: Option<Vec<String>>,
    #[serde(default)]
    ids: Option<Vec<String>>,
}

/// One result for each name, in order.
#[derive(Debug, Serialize, ToSchema)]
struct CancelManyAnswer {
    results: Vec<CancelResult>,
}

#[derive(Debug, Serialize, ToSchema)]
struct CancelResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(flatten)]
    outcome: CancelOutcome,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum CancelOutcome {
    Answer(CancelAnswer),
    Problem { problem: Problem },
}

/// Stops many tasks before their next fires.
#[utoipa::path(
    post, path = "/v1/{namespace}/cancel", tag = "tasks", request_body = CancelManyBody,
    responses((status = 200, description = "one result each", body = CancelManyAnswer))
)]
pub(crate) async fn cancel(
    State(broker): State<Arc<Broker>>,
    In(namespace): In,
    Sent(body): Sent<NAMES_BYTES_MAX>,
) -> Answer {
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
    let mut calls = Calls::default();
    let mut problems = Vec::with_capacity(names.len());
    for name in &names {
        let subject =
            if by_key { by_key_of(&broker, &namespace, name) } else { by_id(&namespace, name) };
        problems.push(subject.map(|(partition, subject)| {
            calls.push(partition, Command::Cancel(subject));
        }));
    }
    let mut told = calls.ask(&broker.owners).await.into_iter();
    let outcomes = problems.into_iter().map(|problem| {
        if let Err(invalid) = problem {
            return CancelOutcome::Problem { problem: invalid.into() };
        }
        match told.next().unwrap_or(Err(EngineError::Stopped)) {
            Ok(Reply::Cancelled(cancelled)) => CancelOutcome::Answer(CancelAnswer::of(cancelled)),
            Ok(told) => unreachable!("another command's answer: {told:?}"),
            Err(EngineError::NotFound) => CancelOutcome::Answer(CancelAnswer::NotFound),
            Err(error) => CancelOutcome::Problem { problem: error.into() },
        }
    });
    let results = outcomes.zip(names.iter()).map(|(outcome, name)| {
        let (key, id) =
            if by_key { (Some(name.clone()), None) } else { (None, Some(name.clone())) };
        CancelResult { key, id, outcome }
    });
    answer::ok(&CancelManyAnswer { results: results.collect() })
}

fn by_key_of(
    broker: &Broker,
    namespace: &Namespace,
    name: &str,
) -> Result<(PartitionId, Subject), Invalid> {
    let key = TaskKey::new(name)?;
    let partition = partition_of(namespace, &key, broker.owners.partitions());
    Ok((partition, Subject::Key(namespace.clone(), key)))
}

fn by_id(namespace: &Namespace, name: &str) -> Result<(PartitionId, Subject), Invalid> {
    let id: TaskId = name.parse().map_err(|error| Invalid::new("ids", format!("{error}")))?;
    Ok((id.partition(), Subject::Id(namespace.clone(), id)))
}
