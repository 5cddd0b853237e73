//! `GET /v1/connections` and `POST /v1/connections/{connection}/test`: the connections and sources
//! of this broker, for operators. Secrets are never shown.

use std::sync::Arc;

use axum::extract::{Path, State};
use punctual_connectors::{ConnectionView, SourceState};
use punctual_core::ConnectionName;
use punctual_engine::ConnectionState;
use serde::Serialize;
use utoipa::ToSchema;

use super::request::QueryParams;
use super::response::{self, ApiResult};
use crate::broker::Broker;
use crate::problem::Problem;

/// The connections and sources of a broker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Connections)]
struct ConnectionsAnswer {
    /// By name.
    connections: Vec<ConnectionAnswer>,
    /// In the order of the configuration.
    sources: Vec<SourceAnswer>,
}

/// A connection of the configuration.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Connection)]
struct ConnectionAnswer {
    name: String,
    /// The kind of system.
    kind: &'static str,
    /// Where it is.
    address: String,
    /// `ready` or `away`.
    state: &'static str,
    /// Since when, in RFC 3339.
    since: String,
    /// Why it is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Open sessions.
    sessions: usize,
    /// Deliveries that wait for a session.
    waiting: usize,
    /// Deliveries that were sent and are not confirmed.
    in_flight: usize,
    /// Deliveries that were confirmed since the broker started.
    confirmed: u64,
    /// Deliveries that failed or were refused since the broker started.
    failed: u64,
    /// The namespaces whose tasks may name it.
    namespaces: Vec<String>,
    /// What of it they may name.
    allow: Vec<String>,
    /// The statements that the configuration has.
    statements: Vec<String>,
}

/// A source of the configuration.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Source)]
struct SourceAnswer {
    /// Its connection and its table.
    name: String,
    /// The namespace of its tasks.
    namespace: String,
    /// When this broker last read it, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_at: Option<String>,
    /// Rows that this broker has applied.
    applied: u64,
    /// Rows that this broker has moved aside.
    rejected: u64,
    /// How long the oldest row of the last read had waited, in milliseconds.
    lag_ms: u64,
    /// Why it cannot go on at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// What a test of a connection came to.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConnectionTest)]
struct TestAnswer {
    name: String,
    /// Whether the other side answers.
    works: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// List connections
///
/// Lists the connections and sources of the broker that answers. Needs an admin token.
#[utoipa::path(
    get, path = "/v1/connections", tag = "connections", operation_id = "list_connections",
    responses((status = 200, description = "Connections and sources.", body = ConnectionsAnswer))
)]
pub(crate) async fn list(State(broker): State<Arc<Broker>>, params: QueryParams) -> ApiResult {
    params.end()?;
    let connections = broker.sinks.views().into_iter().map(ConnectionAnswer::of).collect();
    let sources = broker.source_states().into_iter().map(SourceAnswer::of).collect();
    response::ok(&ConnectionsAnswer { connections, sources })
}

/// Test a connection
///
/// Opens a session of a connection, asks the other side for an answer, and closes the session.
/// Needs an admin token.
#[utoipa::path(
    post, path = "/v1/connections/{connection}/test", tag = "connections",
    operation_id = "test_connection",
    responses((status = 200, description = "Whether it works.", body = TestAnswer))
)]
pub(crate) async fn test(State(broker): State<Arc<Broker>>, Path(name): Path<String>) -> ApiResult {
    let name = ConnectionName::new(&name)?;
    let tested =
        broker.sinks.test(&name).await.ok_or_else(|| Problem::connection_not_found(&name))?;
    let (works, problem) = (tested.is_ok(), tested.err());
    response::ok(&TestAnswer { name: name.as_str().to_owned(), works, problem })
}

impl ConnectionAnswer {
    fn of(view: ConnectionView) -> Self {
        Self {
            name: view.name.as_str().to_owned(),
            kind: view.kind,
            address: view.address,
            state: match view.state {
                ConnectionState::Ready => "ready",
                ConnectionState::Away => "away",
            },
            since: view.since.to_string(),
            problem: view.problem,
            sessions: view.sessions,
            waiting: view.waiting,
            in_flight: view.in_flight,
            confirmed: view.confirmed,
            failed: view.failed,
            namespaces: view.namespaces,
            allow: view.allow,
            statements: view.places,
        }
    }
}

impl SourceAnswer {
    fn of(state: SourceState) -> Self {
        Self {
            name: state.name,
            namespace: state.namespace,
            read_at: state.read_at.map(|at| at.to_string()),
            applied: state.applied,
            rejected: state.rejected,
            lag_ms: u64::try_from(state.lag.as_millis()).unwrap_or(u64::MAX),
            problem: state.problem,
        }
    }
}
