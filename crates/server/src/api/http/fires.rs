//! `GET /v1/{namespace}/fires`: lists the fires of all tasks that have ended, newest first.
//!
//! The pages are read by `api/fire_pages`. The fires of one task are in `tasks/fires`.

use std::sync::Arc;

use axum::extract::State;
use punctual_store::{FireFilter, Page};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::request::{PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use super::tasks::list::{EntryFilter, LabelFilter, PAGE_DEFAULT, PAGE_MAX, PageLimit};
use crate::api::fire_pages::{after_fire, fire_page, parse_cursor, parse_end};
use crate::broker::Broker;
use crate::fire_form::FireAnswer;
use crate::problem::Problem;
use crate::schema::{CursorText, documented, reference};
use crate::task_form::{EndName, TimeValue};

/// A page of fires.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FirePage)]
struct FirePageAnswer<'a> {
    /// The fire that ended last comes first.
    fires: Vec<FireAnswer<'a>>,
    /// The cursor of the next page; `null` on the last page. A page may be short or empty and
    /// still have a next one.
    #[schema(value_type = Option<CursorText>)]
    next: Option<String>,
}

documented!(
    /// The cursor of the list of fires.
    FireCursor,
    "FireCursor",
    json!({"allOf": [reference::<CursorText>(), {"pattern": "^f"}]})
);

/// List fires
///
/// Lists the fires of all tasks of a namespace that have ended, newest first, as long as their
/// history is retained.
#[utoipa::path(
    get, path = "/v1/{namespace}/fires", tag = "fires", operation_id = "list_all_fires",
    params(
        ("end" = inline(Option<EndName>), Query, description =
            "Only fires that ended in this way. Default: in any way."),
        ("key_prefix" = Option<String>, Query, description =
            "Only fires of tasks whose key begins with this text."),
        ("label" = inline(Option<LabelFilter>), Query, description =
            "Only fires of tasks with this label: `name:value` or `name=value`."),
        ("from" = inline(Option<TimeValue>), Query, description =
            "Only fires that ended at this time or later."),
        ("to" = inline(Option<TimeValue>), Query, description =
            "Only fires that ended before this time."),
        ("limit" = inline(Option<PageLimit>), Query, description = "Fires per page."),
        ("cursor" = inline(Option<FireCursor>), Query, description =
            "The `next` of the previous page."),
    ),
    responses((status = 200, description = "A page of fires.", body = FirePageAnswer))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    mut params: QueryParams,
) -> ApiResult {
    let end = params.take("end")?.map(|end| parse_end(&end)).transpose()?;
    let EntryFilter { key_prefix, label, from, to } = EntryFilter::take(&mut params)?;
    let limit = params.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    let after = params.take("cursor")?.map(|text| cursor(&text)).transpose()?;
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let filter = FireFilter { namespace, end, key_prefix, label, from, to };
    let Page { items, next } = fire_page(&broker, &filter, after, limit).await?;
    let fires = items.iter().map(FireAnswer::ended).collect();
    response::page(&FirePageAnswer { fires, next: next.map(after_fire) }, permit)
}

fn cursor(text: &str) -> Result<punctual_store::FirePosition, Problem> {
    parse_cursor(text).ok_or_else(|| {
        let detail = "cursor must be the `next` of an earlier page of this list";
        Problem::invalid_request(detail, Some("cursor".to_owned()))
    })
}
