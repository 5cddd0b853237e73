//! Dead letters over HTTP: list, redrive and delete them. `api/dead_letters` does it.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{DeadLetter, Invalid};
use punctual_store::Page;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::page_cursor;
use super::request::{
    self, BATCH_MAX, JsonBody, NAMES_BYTES_MAX, PathName, PathNamespace, QueryParams,
};
use super::response::{self, ApiResult, DELETED, Deleted};
use super::tasks::list::{PAGE_DEFAULT, PAGE_MAX, PageLimit};
use crate::api::dead_letters::{RedrivenLetters, delete_letter, redrive_all, redrive_ids};
use crate::api::task_pages::dead_letter_page;
use crate::broker::Broker;
use crate::fire_form::{AttemptAnswer, DeadReasonName, attempts_of, reason_name};
use crate::problem::Problem;
use crate::schema::{
    CursorText, FireIdText, array, documented, exactly_one, reference, with_keywords,
};
use crate::task_form::{InstantText, TaskAnswer};

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
    attempts: Vec<AttemptAnswer<'a>>,
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
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Redriven)]
struct RedriveAnswer {
    /// How many were scheduled again.
    redriven: usize,
    /// Those that were not, and why.
    problems: Vec<LetterProblem>,
    /// With `all`: whether dead letters are left, because one call redrives a limited number. Call
    /// again for the rest.
    more: bool,
}

impl RedriveAnswer {
    fn of(RedrivenLetters { redriven, problems, more }: RedrivenLetters) -> Self {
        let problems = problems.into_iter().map(|(id, problem)| LetterProblem { id, problem });
        Self { redriven, problems: problems.collect(), more }
    }
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
    responses((status = 200, description = "How many were redriven.", body = RedriveAnswer))
)]
pub(crate) async fn redrive(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    JsonBody(body): JsonBody<NAMES_BYTES_MAX>,
) -> ApiResult {
    let body: RedriveBody = request::json(&body, "a list of ids, or `all`")?;
    let redriven = match (body.ids, body.all) {
        (Some(ids), None) => redrive_ids(&broker, &namespace, &ids).await?,
        (None, Some(true)) => redrive_all(&broker, &namespace).await?,
        _ => {
            let problem = "exactly one of `ids` and `all: true` must be given";
            return Err(Invalid::new("ids", problem).into());
        }
    };
    response::ok(&RedriveAnswer::of(redriven))
}

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
    delete_letter(&broker, &namespace, &id).await?;
    response::ok(&Deleted { result: DELETED })
}
