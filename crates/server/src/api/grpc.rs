//! The gRPC API: the same operations as HTTP, on the same port, with less overhead per task.
//!
//! `tasks` and `workers` hold the calls. `convert` and `deliveries` are the only files that know
//! both messages and the types of the core. Batches, messages and what a stream keeps pending are
//! bounded, and streams end when the broker drains.

mod convert;
mod deliveries;
mod list;
mod tasks;
mod workers;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use punctual_core::Namespace;
use punctual_proto::DESCRIPTORS;
use punctual_proto::v1::tasks_server::TasksServer;
use tokio::sync::watch;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::auth::Identity;
use crate::broker::Broker;
use crate::listen;
use crate::peer;
use crate::problem::Problem;
use tasks::TasksApi;
use workers::WorkersApi;

/// Bytes of a message: 10000 tasks of 800 bytes, or 30 with the largest payload.
const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Returns all gRPC services, with health and reflection, as routes.
pub(crate) fn routes(broker: &Arc<Broker>) -> Router {
    // Workers compare this to recognize a restart: delivery tokens of an earlier run are stale.
    let run = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    let tasks = TasksServer::new(TasksApi::new(Arc::clone(broker)))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let workers = WorkersApi::new(Arc::clone(broker), run);
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(report_health(reporter, broker.draining.clone()));
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut routes = Routes::builder();
    routes.add_service(tasks).add_service(workers).add_service(health);
    // Some tools still use the older version of the protocol.
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => _ = routes.add_service(v1).add_service(v1alpha),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "gRPC reflection not available")
        }
    }
    // Paths that match no gRPC method are handled by the HTTP routes.
    let routes = routes.routes().into_axum_router().reset_fallback();
    let routes = routes.layer(from_fn_with_state(Arc::clone(broker), check_call));
    let Some(shared) = &broker.cluster else {
        return routes;
    };
    // Other brokers are served until the end: they receive the partitions of a draining broker.
    let peer_service = peer::server(Arc::clone(broker), shared.secret.clone());
    let mut peers = Routes::builder();
    peers.add_service(peer_service);
    let peers = peers.routes().into_axum_router().reset_fallback();
    routes.merge(peers.layer(from_fn_with_state(Arc::clone(broker), check_origin)))
}

/// Refuses new calls while the broker drains, except health checks. Calls in flight end by
/// themselves.
async fn check_call(State(broker): State<Arc<Broker>>, request: Request, next: Next) -> Response {
    if broker.is_draining() && !request.uri().path().starts_with("/grpc.health.") {
        return convert::to_status(&Problem::stopping()).into_http();
    }
    check_origin(State(broker), request, next).await
}

/// Refuses calls of web pages of other origins. Other brokers authenticate inside the call.
async fn check_origin(State(broker): State<Arc<Broker>>, request: Request, next: Next) -> Response {
    if let Err(problem) = broker.browser_policy.check(request.uri(), request.headers()) {
        listen::discard_body(request.version(), request.into_body()).await;
        return problem.into_response();
    }
    drop(broker);
    next.run(request).await
}

/// Reports `SERVING` until the broker drains.
async fn report_health(reporter: HealthReporter, mut draining: watch::Receiver<bool>) {
    reporter.set_serving::<TasksServer<TasksApi>>().await;
    reporter.set_serving::<WorkersApi>().await;
    drained(&mut draining).await;
    reporter.set_service_status("", ServingStatus::NotServing).await;
    reporter.set_not_serving::<TasksServer<TasksApi>>().await;
    reporter.set_not_serving::<WorkersApi>().await;
}

/// The caller, by the `authorization` metadata of the call.
fn identify(broker: &Broker, metadata: &MetadataMap) -> Result<Identity, Status> {
    let authorization = metadata.get("authorization").map(|value| value.as_bytes());
    let identity = broker.tokens.identify(authorization);
    identity.ok_or_else(|| convert::to_status(&Problem::unauthenticated()))
}

/// Checks that a caller may use a namespace.
fn authorize(identity: &Identity, namespace: &Namespace) -> Result<(), Status> {
    if identity.may_use(namespace) {
        return Ok(());
    }
    Err(convert::to_status(&Problem::namespace_forbidden(namespace)))
}

/// The namespace of a call, if its caller may use it.
fn authorized_namespace(
    broker: &Broker,
    metadata: &MetadataMap,
    name: &str,
) -> Result<Namespace, Status> {
    // The token is checked first, so that callers without one learn nothing about names.
    let identity = identify(broker, metadata)?;
    let namespace = Namespace::new(name).map_err(convert::invalid)?;
    authorize(&identity, &namespace)?;
    Ok(namespace)
}

/// Resolves when the broker drains.
async fn drained(draining: &mut watch::Receiver<bool>) {
    // An error means that the broker was dropped.
    _ = draining.wait_for(|draining| *draining).await;
}
