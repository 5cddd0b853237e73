//! `GET /v1/namespaces`: lists the namespaces of the store with their counts, for operators.
//!
//! The pages are read by `api/namespace_pages`.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::NAMESPACE_BYTES_MAX;
use punctual_store::{CountedNamespace, Page};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::request::QueryParams;
use super::response::{self, ApiResult};
use super::tasks::list::{PAGE_DEFAULT, PAGE_MAX, PageLimit};
use crate::api::namespace_pages::{after_namespace, namespace_page, parse_cursor};
use crate::broker::Broker;
use crate::schema::documented;

/// Bytes of a cursor: its beginning, and a namespace, which may have two marks of an internal one.
const CURSOR_BYTES_MAX: usize = NAMESPACE_BYTES_MAX + 4;

/// A page of namespaces.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Namespaces)]
struct NamespaceListAnswer<'a> {
    /// By name.
    namespaces: Vec<NamespaceAnswer<'a>>,
    /// The cursor of the next page; `null` on the last page. A page may be short or empty and
    /// still have a next one.
    #[schema(value_type = Option<NamespaceCursor>)]
    next: Option<String>,
}

/// A namespace and its tasks by state, as the store counts them. Tasks with an attempt in flight
/// count as `scheduled`, and as `dead` if they are delivered at most once; the counts of one
/// namespace (`/v1/{namespace}/stats`) tell them apart.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CountedNamespace)]
struct NamespaceAnswer<'a> {
    /// The namespace.
    name: &'a str,
    /// Tasks that were ever accepted: the sum of all states.
    accepted: i64,
    /// Tasks that wait for their time or for the next attempt, or have an attempt in flight.
    scheduled: i64,
    /// Tasks that wait to be resumed.
    paused: i64,
    /// Tasks whose last fire succeeded.
    done: i64,
    /// Tasks whose last fire became a dead letter.
    dead: i64,
    /// Tasks that were cancelled.
    cancelled: i64,
    /// Dead letters that are retained.
    dead_letters: i64,
}

documented!(
    /// The cursor of the list of namespaces.
    NamespaceCursor,
    "NamespaceCursor",
    json!({"type": "string", "pattern": "^n:[!-~]+$", "maxLength": CURSOR_BYTES_MAX})
);

/// List namespaces
///
/// Lists the namespaces that ever had a task, by name, each with its counts. Needs an admin token.
#[utoipa::path(
    get, path = "/v1/namespaces", tag = "statistics", operation_id = "list_namespaces",
    params(
        ("limit" = inline(Option<PageLimit>), Query, description = "Namespaces per page."),
        ("cursor" = inline(Option<NamespaceCursor>), Query, description =
            "The `next` of the previous page."),
    ),
    responses((status = 200, description = "A page of namespaces.", body = NamespaceListAnswer))
)]
pub(crate) async fn list(State(broker): State<Arc<Broker>>, mut params: QueryParams) -> ApiResult {
    let limit = params.count("limit", PAGE_DEFAULT, PAGE_MAX)?;
    let after = params.take("cursor")?.map(|text| parse_cursor(&text)).transpose()?;
    params.end()?;
    let (Page { items, next }, permit) = namespace_page(&broker, after, limit).await?;
    let namespaces = items.iter().map(NamespaceAnswer::of).collect();
    let next = next.as_ref().map(after_namespace);
    response::page(&NamespaceListAnswer { namespaces, next }, permit)
}

impl<'a> NamespaceAnswer<'a> {
    fn of(CountedNamespace { name, counts }: &'a CountedNamespace) -> Self {
        Self {
            name: name.as_str(),
            accepted: counts.accepted(),
            scheduled: counts.scheduled,
            paused: counts.paused,
            done: counts.done,
            dead: counts.dead,
            cancelled: counts.cancelled,
            dead_letters: counts.dead_letters,
        }
    }
}
