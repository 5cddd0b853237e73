//! Dead letters over HTTP: list, count, redrive and delete them. `api/dead_letters` does it.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{DeadLetter, Invalid, Namespace};
use punctual_store::{CountedGroup, Page};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::action_notes::with_detail;
use super::page_cursor;
use super::request::{
    self, BATCH_MAX, JsonBody, NAMES_BYTES_MAX, PathName, PathNamespace, QueryParams,
};
use super::response::{self, ApiResult, DELETED, Deleted};
use super::tasks::list::{PAGE_DEFAULT, PAGE_MAX, PageLimit};
use crate::actions::ActionDetail;
use crate::api::dead_letters::{
    ChangedLetters, GroupList, LetterSelection, LetterVerb, change_letters, delete_letter,
    list_groups,
};
use crate::api::task_pages::{LetterFilter, dead_letter_page};
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
    /// The cursor of the next page; `null` on the last page. With a filter, a page may be short or
    /// empty and still have a next one.
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
/// Lists the dead letters of a namespace in the order of their fire ids: all, or those of a group.
#[utoipa::path(
    get, path = "/v1/{namespace}/dead", tag = "dead letters", operation_id = "list_dead_letters",
    params(
        ("reason" = Option<String>, Query, description =
            "Only letters of groups with this reason, as `/dead/groups` shows it."),
        ("target" = Option<String>, Query, description =
            "Only letters of groups with this target, as `/dead/groups` shows it."),
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
    let (reason, target) = (params.take("reason")?, params.take("target")?);
    params.end()?;
    let filter = LetterFilter { reason, target };
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let Page { items, next } = dead_letter_page(&broker, &namespace, &filter, after, limit).await?;
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

/// Dead letters by group.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeadGroups)]
struct DeadGroupsAnswer {
    /// The largest groups first.
    groups: Vec<DeadGroupAnswer>,
    /// How many letters are in other groups.
    more: u64,
}

/// Dead letters with the same reason and target.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeadGroup)]
struct DeadGroupAnswer {
    /// What the last attempt said, in few words: `status 503`, `timeout`, `refused`.
    reason: String,
    /// Scheme, host and port of a webhook, or `queue NAME`.
    target: String,
    /// How many letters there are.
    count: u64,
    /// When the first of them died, since there was none.
    #[schema(value_type = InstantText)]
    first_at: String,
    /// When the last of them died.
    #[schema(value_type = InstantText)]
    last_at: String,
    /// The fire id of one of them; `null` if none is known right now.
    #[schema(value_type = Option<FireIdText>)]
    example: Option<String>,
}

impl DeadGroupAnswer {
    fn of(CountedGroup { group, letters }: CountedGroup) -> Self {
        Self {
            reason: group.reason,
            target: group.target,
            count: letters.count,
            first_at: letters.first_at.to_string(),
            last_at: letters.last_at.to_string(),
            example: letters.example.map(|fire_id| fire_id.to_string()),
        }
    }
}

/// Count dead letters by group
///
/// Counts the dead letters of a namespace by reason and target, the largest groups first. Takes the
/// same time however many letters there are.
#[utoipa::path(
    get, path = "/v1/{namespace}/dead/groups", tag = "dead letters",
    operation_id = "list_dead_groups",
    responses((status = 200, description = "The groups.", body = DeadGroupsAnswer))
)]
pub(crate) async fn groups(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let (GroupList { groups, more }, permit) = list_groups(&broker, &namespace).await?;
    let groups = groups.into_iter().map(DeadGroupAnswer::of).collect();
    response::page(&DeadGroupsAnswer { groups, more }, permit)
}

/// The dead letters to change: exactly one of `ids`, `all` and `where`. An entry that is not a fire
/// id gets a problem.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct LettersBody {
    /// Their fire ids.
    #[serde(default)]
    #[schema(value_type = Option<FireIdList>)]
    ids: Option<Vec<String>>,
    /// `true`: every dead letter of the namespace.
    #[serde(default)]
    all: Option<bool>,
    /// Those of the groups with this reason and this target.
    #[serde(default)]
    r#where: Option<GroupBody>,
}

/// A reason, a target, or both, as `/dead/groups` shows them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `reason`, `target` or both")]
#[schema(as = DeadGroupFilter)]
struct GroupBody {
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    target: Option<String>,
}

documented!(
    /// A [`LettersBody`] with exactly one field.
    LettersRequest,
    "DeadLetterSelection",
    {
        let (ids, all) = (json!({"type": "array"}), json!({"const": true}));
        let group = json!({"type": "object"});
        let one = exactly_one(&[("ids", ids), ("all", all), ("where", group)]);
        with_keywords(&LettersBody::schema(), &json!({"oneOf": one}))
    },
    fields of LettersBody
);

impl LettersBody {
    fn selection(self) -> Result<LetterSelection, Invalid> {
        match self {
            Self { ids: Some(ids), all: None, r#where: None } => Ok(LetterSelection::Ids(ids)),
            Self { ids: None, all: Some(true), r#where: None } => {
                Ok(LetterSelection::Matching(LetterFilter::default()))
            }
            // An empty condition would be all letters, which a caller must ask for.
            Self { r#where: Some(GroupBody { reason: None, target: None }), .. } => {
                Err(Invalid::new("where", "must have a `reason`, a `target` or both"))
            }
            Self { ids: None, all: None, r#where: Some(GroupBody { reason, target }) } => {
                Ok(LetterSelection::Matching(LetterFilter { reason, target }))
            }
            _ => {
                let problem = "exactly one of `ids`, `all: true` and `where` must be given";
                Err(Invalid::new("ids", problem))
            }
        }
    }
}
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
    /// With `all` or `where`: whether dead letters are left, because one call redrives a limited
    /// number. Call again for the rest.
    more: bool,
}

/// The result of a delete of many.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeletedLetters)]
struct DeleteManyAnswer {
    /// How many were removed for good.
    deleted: usize,
    /// Those that were not, and why.
    problems: Vec<LetterProblem>,
    /// With `all` or `where`: whether dead letters are left, because one call deletes a limited
    /// number. Call again for the rest.
    more: bool,
}

/// Why a dead letter was not changed.
#[derive(Debug, Serialize, ToSchema)]
struct LetterProblem {
    /// Its fire id, as it was sent.
    id: String,
    /// Why it was not changed.
    problem: Problem,
}

/// Changes the letters that a body selects. `answer` makes the answer of how many were changed, why
/// others were not, and whether letters are left.
async fn change<A: Serialize>(
    broker: &Broker,
    namespace: &Namespace,
    verb: LetterVerb,
    body: &[u8],
    answer: fn(usize, Vec<LetterProblem>, bool) -> A,
) -> ApiResult {
    let body: LettersBody = request::json(body, "a list of ids, `all` or `where`")?;
    let selection = body.selection()?;
    let detail = selection.to_string();
    let changed = change_letters(broker, namespace, verb, selection).await?;
    let ChangedLetters { changed, problems, more } = changed;
    let problem = |(id, problem)| LetterProblem { id, problem };
    let problems = problems.into_iter().map(problem).collect();
    let did = ActionDetail { name: None, detail, changed: Some(changed as u64) };
    Ok(with_detail(response::ok(&answer(changed, problems, more))?, did))
}

/// Redrive dead letters
///
/// Schedules dead letters again: each is fired at once, with all of its attempts.
#[utoipa::path(
    post, path = "/v1/{namespace}/dead/redrive", tag = "dead letters",
    operation_id = "redrive_dead_letters", request_body = LettersRequest,
    responses((status = 200, description = "How many were redriven.", body = RedriveAnswer))
)]
pub(crate) async fn redrive(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    JsonBody(body): JsonBody<NAMES_BYTES_MAX>,
) -> ApiResult {
    let answer = |redriven, problems, more| RedriveAnswer { redriven, problems, more };
    change(&broker, &namespace, LetterVerb::Redrive, &body, answer).await
}

/// Delete dead letters
///
/// Removes dead letters for good: some, all of the namespace, or those of a group.
#[utoipa::path(
    post, path = "/v1/{namespace}/dead/delete", tag = "dead letters",
    operation_id = "delete_dead_letters", request_body = LettersRequest,
    responses((status = 200, description = "How many were deleted.", body = DeleteManyAnswer))
)]
pub(crate) async fn delete_many(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    JsonBody(body): JsonBody<NAMES_BYTES_MAX>,
) -> ApiResult {
    let answer = |deleted, problems, more| DeleteManyAnswer { deleted, problems, more };
    change(&broker, &namespace, LetterVerb::Delete, &body, answer).await
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
