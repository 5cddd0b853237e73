//! `GET /v1/whoami`: the rights of the caller's token, and which broker it speaks to.

use std::sync::Arc;

use axum::extract::State;
use http::HeaderMap;
use punctual_core::Namespace;
use serde::Serialize;
use utoipa::ToSchema;

use super::request::QueryParams;
use super::response::{self, ApiResult};
use crate::api::whoami::{CallerInfo, VERSION};
use crate::auth::{Right, Rights};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::schema::{documented, one_of};
use crate::task_form::InstantText;

/// A caller, and the broker that it has called.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WhoAmI)]
struct WhoAmIAnswer<'a> {
    /// Whether the broker has tokens. Without any, every caller is an admin.
    tokens: bool,
    /// Whether the token is an admin token, which grants everything.
    admin: bool,
    /// What the token grants in which namespaces; empty for an admin.
    namespaces: Vec<GrantedNamespace<'a>>,
    /// `HOST:PORT` of the broker that answers.
    broker: String,
    /// The name of the cluster; `null` if the broker shares its store with no other.
    cluster: Option<&'a str>,
    /// Where tasks are kept.
    #[schema(value_type = StoreKind)]
    store: &'static str,
    /// The version of the broker.
    version: &'static str,
    /// The time of the broker.
    #[schema(value_type = InstantText)]
    time: String,
}

/// The rights of a token in a namespace.
#[derive(Debug, Serialize, ToSchema)]
struct GrantedNamespace<'a> {
    name: &'a str,
    #[schema(value_type = Vec<RightName>)]
    rights: Vec<&'static str>,
}

impl<'a> GrantedNamespace<'a> {
    fn of((name, rights): &'a (Namespace, Rights)) -> Self {
        Self { name: name.as_str(), rights: rights.names().collect() }
    }
}

documented!(
    /// A right of a token in a namespace.
    RightName,
    "Right",
    one_of(Right::ALL.map(Right::name))
);

documented!(
    /// The kind of a store.
    StoreKind,
    "StoreKind",
    one_of(punctual_store_any::AnyStore::KINDS)
);

/// Show what a token grants
///
/// Shows the rights of the caller's token, and which broker answers. A program or page uses it to
/// offer only what the token grants; every call is checked again.
#[utoipa::path(
    get, path = "/v1/whoami", tag = "health", operation_id = "whoami",
    responses((status = 200, description = "The rights of the caller.", body = WhoAmIAnswer))
)]
pub(crate) async fn whoami(
    State(broker): State<Arc<Broker>>,
    headers: HeaderMap,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let identity = broker.tokens.identify_headers(&headers);
    let identity = identity.ok_or_else(Problem::unauthenticated)?;
    let info = CallerInfo::of(&broker, &identity);
    response::ok(&WhoAmIAnswer {
        tokens: info.tokens,
        admin: info.admin,
        namespaces: info.namespaces.iter().map(GrantedNamespace::of).collect(),
        broker: info.broker,
        cluster: info.cluster,
        store: info.store,
        version: VERSION,
        time: info.time.to_string(),
    })
}
