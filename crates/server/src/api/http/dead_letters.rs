//! Dead letters: list, redrive and delete them.
//!
//! A redrive schedules dead letters again, in batches of [`REDRIVE_BATCH`]. One call redrives at
//! most [`REDRIVE_MAX`] of them and says whether there are more.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use punctual_core::{DeadLetter, FireId, Invalid, Namespace, PartitionId};
use punctual_engine::{Command, EngineError, Subject};
use punctual_store::{Page, StoreError, TaskStore as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::page_cursor;
use super::request::{
    self, BATCH_MAX, JsonBody, NAMES_BYTES_MAX, PathName, PathNamespace, QueryParams, check_count,
};
use super::response::{self, ApiResult};
use super::tasks::fires::{AttemptAnswer, DeadReasonName, attempts_of, reason_name};
use super::tasks::list::{PAGE_DEFAULT, PAGE_MAX, PageLimit};
use crate::api::command_batch::{CommandBatch, expect_forgotten, expect_task, next_result};
use crate::api::task_pages::dead_letter_page;
use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};
use crate::schema::{
    CursorText, FireIdText, array, documented, exactly_one, one_of, reference, with_keywords,
};
use crate::task_form::{InstantText, TaskAnswer};

/// Dead letters that are redriven in one commit. An owner takes a call whole, so this is how long a
/// step holds up other namespaces: a fraction of a millisecond.
const REDRIVE_BATCH: usize = 128;
/// Dead letters that one call redrives: this takes some seconds.
const REDRIVE_MAX: usize = 100_000;

/// The result of a delete.
const DELETED: &str = "deleted";

/// A page of dead letters.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeadLetters)]
struct DeadLetterPage<'a> {
    /// The dead letters, in the order of their fire ids.
    dead: Vec<DeadLetterAnswer<'a>>,
    /// The cursor of the next page; `null` on the last page.
    #[schema(value_type = Option<CursorText>)]
    next: Option<String>,
}

/// A fire that ended without success.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeadLetter)]
struct DeadLetterAnswer<'a> {
    /// Names the dead letter in redrive and delete.
    #[schema(value_type = FireIdText)]
    fire_id: String,
    /// `exhausted` (no attempt left), `refused` (by the receiver), `expired` (past `expires_after`)
    /// or `unknown`: an at-most-once fire was sent and its outcome is not known. If the outcome
    /// arrives later the dead letter is removed; until then it cannot be redriven.
    #[schema(value_type = DeadReasonName)]
    reason: &'static str,
    /// When the fire became a dead letter.
    #[schema(value_type = InstantText)]
    died_at: String,
    /// The attempts of the fire, oldest first.
    attempts: Vec<AttemptAnswer>,
    /// The task as it was when the fire died.
    task: TaskAnswer<'a>,
}

/// List dead letters
///
/// Lists the dead letters of a namespace in the order of their fire ids.
#[utoipa::path(
    get, path = "/v1/{namespace}/dead", tag = "dead letters", operation_id = "list_dead_letters",
    params(
        ("limit" = inline(Option<PageLimit>), Query, description = "Dead letters per page."),
        ("cursor" = inline(Option<DeadCursor>), Query, description =
            "The `next` of the previous page."),
    ),
    responses((status = 200, description = "A page of dead letters.", body = DeadLetterPage))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    mut params: QueryParams,
) -> ApiResult {
    let limit = params.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    let after = page_cursor::dead_letter(params.take("cursor")?.as_deref())?;
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let Page { items, next } = dead_letter_page(&broker, &namespace, after, limit).await?;
    let dead = items.iter().map(DeadLetterAnswer::of).collect();
    let next = next.map(page_cursor::after_dead_letter);
    response::page(&DeadLetterPage { dead, next }, permit)
}

impl<'a> DeadLetterAnswer<'a> {
    fn of(letter: &'a DeadLetter) -> Self {
        Self {
            fire_id: letter.fire_id().to_string(),
            reason: reason_name(letter.reason),
            died_at: letter.died_at.to_string(),
            attempts: attempts_of(&letter.task.attempts),
            task: TaskAnswer::of_dead_letter(letter),
        }
    }
}

/// The dead letters to redrive: exactly one of `ids` and `all`. An entry that is not a fire id gets
/// a problem.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct RedriveBody {
    /// Their fire ids.
    #[serde(default)]
    #[schema(value_type = Option<FireIdList>)]
    ids: Option<Vec<String>>,
    /// `true`: every dead letter of the namespace.
    #[serde(default)]
    all: Option<bool>,
}

documented!(
    /// A [`RedriveBody`] with exactly one field.
    RedriveRequest,
    "Redrive",
    {
        let (ids, all) = (json!({"type": "array"}), json!({"const": true}));
        let one = exactly_one(&[("ids", ids), ("all", all)]);
        with_keywords(&RedriveBody::schema(), &json!({"oneOf": one}))
    },
    fields of RedriveBody
);
documented!(
    /// The ids of some dead letters.
    FireIdList,
    "FireIdList",
    array(&reference::<FireIdText>(), 0, BATCH_MAX)
);
documented!(
    /// The cursor of the list of dead letters.
    DeadCursor,
    "DeadCursor",
    json!({"allOf": [reference::<CursorText>(), {"pattern": "^d"}]})
);

/// The result of a redrive.
#[derive(Debug, Serialize, ToSchema, Default)]
struct Redriven {
    /// How many were scheduled again.
    redriven: usize,
    /// Those that were not, and why.
    problems: Vec<LetterProblem>,
    /// With `all`: whether dead letters are left, because one call redrives a limited number. Call
    /// again for the rest.
    more: bool,
}

/// Why a dead letter was not redriven.
#[derive(Debug, Serialize, ToSchema)]
struct LetterProblem {
    /// Its fire id, as it was sent.
    id: String,
    /// Why it was not redriven.
    problem: Problem,
}

/// Redrive dead letters
///
/// Schedules dead letters again: each is fired at once, with all of its attempts.
#[utoipa::path(
    post, path = "/v1/{namespace}/dead/redrive", tag = "dead letters",
    operation_id = "redrive_dead_letters", request_body = RedriveRequest,
    responses((status = 200, description = "How many were redriven.", body = Redriven))
)]
pub(crate) async fn redrive(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    JsonBody(body): JsonBody<NAMES_BYTES_MAX>,
) -> ApiResult {
    let body: RedriveBody = request::json(&body, "a list of ids, or `all`")?;
    let mut redriven = Redriven::default();
    match (body.ids, body.all) {
        (Some(ids), None) => redrive_ids(&broker, &namespace, &ids, &mut redriven).await?,
        (None, Some(true)) => redrive_all(&broker, &namespace, &mut redriven).await?,
        _ => {
            let problem = "exactly one of `ids` and `all: true` must be given";
            return Err(Invalid::new("ids", problem).into());
        }
    }
    response::ok(&redriven)
}

async fn redrive_ids(
    broker: &Broker,
    namespace: &Namespace,
    ids: &[String],
    redriven: &mut Redriven,
) -> Result<(), Problem> {
    check_count("ids", ids.len())?;
    for batch in ids.chunks(REDRIVE_BATCH) {
        let _permit = broker.limits.reads.acquire(namespace).await?;
        let mut letters = Vec::new();
        let found = find_letters(broker, namespace, batch).await;
        for (id, found) in batch.iter().zip(found) {
            match found {
                Ok(letter) => letters.push(letter),
                Err(problem) => {
                    redriven.problems.push(LetterProblem { id: id.clone(), problem });
                }
            }
        }
        redrive_batch(broker, namespace, letters, redriven).await;
    }
    Ok(())
}

/// Pages forward only. A fire that fails again keeps its fire id, so it is not redriven twice.
async fn redrive_all(
    broker: &Broker,
    namespace: &Namespace,
    redriven: &mut Redriven,
) -> Result<(), Problem> {
    let (mut after, mut count) = (None, 0);
    loop {
        // A permit for each step: other lists of the namespace have their turn between two.
        let permit = broker.limits.reads.acquire(namespace).await?;
        let page = dead_letter_page(broker, namespace, after, REDRIVE_BATCH).await?;
        count += page.items.len();
        redrive_batch(broker, namespace, page.items, redriven).await;
        drop(permit);
        after = page.next;
        redriven.more = after.is_some();
        if after.is_none() || count >= REDRIVE_MAX {
            return Ok(());
        }
    }
}

/// Returns the dead letters in the order of `ids`; those of one partition are read together.
async fn find_letters(
    broker: &Broker,
    namespace: &Namespace,
    ids: &[String],
) -> Vec<Result<DeadLetter, Problem>> {
    let mut found = Vec::with_capacity(ids.len());
    let mut by_partition: BTreeMap<PartitionId, (Vec<usize>, Vec<FireId>)> = BTreeMap::new();
    for (index, id) in ids.iter().enumerate() {
        found.push(parse_fire_id("ids", id).and_then(|fire_id| {
            let (indexes, fire_ids) = by_partition.entry(fire_id.task.partition()).or_default();
            indexes.push(index);
            fire_ids.push(fire_id);
            // Until it is found.
            Err(Problem::dead_letter_not_found(namespace, fire_id))
        }));
    }
    for (partition, (indexes, fire_ids)) in by_partition {
        if broker.owners.of(partition).is_none() {
            continue;
        }
        for (index, letter) in
            indexes.into_iter().zip(read_letters(broker, partition, &fire_ids).await)
        {
            match letter {
                Ok(Some(letter)) if letter.task.definition.namespace == *namespace => {
                    found[index] = Ok(letter);
                }
                Ok(_) => {}
                Err(error) => found[index] = Err(error.into()),
            }
        }
    }
    found
}

/// Reads dead letters of one partition at once. If that fails, for example because one of them is
/// damaged, each is read alone.
async fn read_letters(
    broker: &Broker,
    partition: PartitionId,
    fire_ids: &[FireId],
) -> Vec<Result<Option<DeadLetter>, StoreError>> {
    if let Ok(letters) = broker.store.dead_letters(partition, fire_ids).await {
        return letters.into_iter().map(Ok).collect();
    }
    let mut letters = Vec::with_capacity(fire_ids.len());
    for fire_id in fire_ids {
        let letter = broker.store.dead_letters(partition, &[*fire_id]).await;
        letters.push(letter.map(|letter| letter.into_iter().flatten().next()));
    }
    letters
}

async fn redrive_batch(
    broker: &Broker,
    namespace: &Namespace,
    letters: Vec<DeadLetter>,
    redriven: &mut Redriven,
) {
    let mut batch = CommandBatch::default();
    for letter in &letters {
        let subject = match &letter.task.definition.key {
            Some(key) => Subject::Key(namespace.clone(), key.clone()),
            None => Subject::Id(namespace.clone(), letter.task.id),
        };
        let command = Command::Redrive { subject, fire_id: letter.fire_id() };
        batch.push(letter.task.id.partition(), command);
    }
    for (letter, result) in letters.iter().zip(batch.run(&broker.owners).await) {
        match result.and_then(expect_task) {
            Ok(_) => redriven.redriven += 1,
            Err(error) => {
                let id = letter.fire_id().to_string();
                let problem = redrive_problem(error, namespace, letter);
                redriven.problems.push(LetterProblem { id, problem });
            }
        }
    }
}

/// The problem names the dead letter if it is gone, else its task.
fn redrive_problem(error: EngineError, namespace: &Namespace, letter: &DeadLetter) -> Problem {
    if error == EngineError::DeadLetterNotFound {
        return Problem::dead_letter_not_found(namespace, letter.fire_id());
    }
    let id = letter.task.id.to_string();
    let key = letter.task.definition.key.as_ref();
    let name = key.map_or(id.as_str(), |key| key.as_str());
    Problem::of_task(error, TaskRef { namespace, name })
}

/// The result of a delete.
#[derive(Debug, Serialize, ToSchema)]
struct Deleted {
    #[schema(value_type = DeletedResult)]
    result: &'static str,
}

documented!(
    /// The only result of a delete.
    DeletedResult,
    "DeletedResult",
    one_of([DELETED])
);

/// Delete a dead letter
///
/// Removes a dead letter for good.
#[utoipa::path(
    delete, path = "/v1/{namespace}/dead/{fire_id}", tag = "dead letters",
    operation_id = "delete_dead_letter",
    responses((status = 200, description = "The dead letter was deleted.", body = Deleted))
)]
pub(crate) async fn delete(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, id): PathName,
) -> ApiResult {
    let fire_id = parse_fire_id("fire_id", &id)?;
    let mut batch = CommandBatch::default();
    let forget = Command::DeleteLetter { namespace: namespace.clone(), fire_id };
    batch.push(fire_id.task.partition(), forget);
    let mut results = batch.run(&broker.owners).await.into_iter();
    match next_result(&mut results).and_then(|reply| expect_forgotten(&reply)) {
        Ok(()) => response::ok(&Deleted { result: DELETED }),
        Err(EngineError::NotFound | EngineError::DeadLetterNotFound) => {
            Err(Problem::dead_letter_not_found(&namespace, fire_id))
        }
        Err(error) => Err(error.into()),
    }
}

fn parse_fire_id(field: &str, text: &str) -> Result<FireId, Problem> {
    let fire_id = text.parse::<FireId>();
    Ok(fire_id.map_err(|error| Invalid::new(field, error.to_string()))?)
}
