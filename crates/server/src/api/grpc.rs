//! The gRPC API: the same verbs as HTTP, on the same port, for callers in a hurry.
//!
//! In: messages of `punctual-proto`. Out: commands to owners, deliveries of the hub. `tasks` and `workers` hold the calls; `convert`
//! and, for what goes out to workers, `deliveries` are the only files that know both the wire and the core.
//! Invariant: every batch, message and line of a stream has a bound; a stream ends when the broker drains.

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

use crate::auth::Who;
use crate::broker::Broker;
use crate::listen;
use crate::peer;
use tasks::TasksDoor;
use workers::WorkersDoor;

/// The largest message: ten thousand tasks of eight hundred bytes, or thirty with the largest payload.
const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// All services, with health and reflection, as routes beside those of HTTP.
pub(crate) fn routes(broker: &Arc<Broker>) -> Router {
    // Tokens of an earlier run must not be taken for tokens of this one.
    let run = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    let tasks = TasksServer::new(TasksDoor::new(Arc::clone(broker)))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let workers = WorkersDoor::new(Arc::clone(broker), run);
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(report_health(reporter, broker.draining.clone()));
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut routes = Routes::builder();
    routes.add_service(tasks).add_service(workers).add_service(health);
    // Some tools still ask in the older dialect.
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => _ = routes.add_service(v1).add_service(v1alpha),
        (Err(error), _) | (_, Err(error)) => tracing::error!(%error, "there is no reflection"),
    }
    // What is no call of gRPC is answered by the routes of HTTP.
    let routes = routes.routes().into_axum_router().reset_fallback();
    let routes = routes.layer(from_fn_with_state(Arc::clone(broker), pass));
    let Some(shared) = &broker.cluster else {
        return routes;
    };
    // Peers are answered to the end: they have what this broker lets go of.
    let door = peer::server(Arc::clone(broker), shared.secret.clone());
    let mut peers = Routes::builder();
    peers.add_service(door);
    let peers = peers.routes().into_axum_router().reset_fallback();
    routes.merge(peers.layer(from_fn_with_state(Arc::clone(broker), pass_peers)))
}

/// Calls that are under way end by themselves; new ones are refused, but for those that ask whether they would be.
async fn pass(State(broker): State<Arc<Broker>>, request: Request, next: Next) -> Response {
    if broker.is_draining() && !request.uri().path().starts_with("/grpc.health.") {
        return Status::unavailable("the broker is stopping").into_http();
    }
    pass_peers(State(broker), request, next).await
}

/// A page of a stranger is refused; a peer says who it is in the call.
async fn pass_peers(State(broker): State<Arc<Broker>>, request: Request, next: Next) -> Response {
    if let Err(problem) = broker.strangers.check(request.uri(), request.headers()) {
        listen::read_off(request.version(), request.into_body()).await;
        return problem.into_response();
    }
    drop(broker);
    next.run(request).await
}

/// Serving until the broker drains.
async fn report_health(reporter: HealthReporter, mut draining: watch::Receiver<bool>) {
    reporter.set_serving::<TasksServer<TasksDoor>>().await;
    reporter.set_serving::<WorkersDoor>().await;
    drains(&mut draining).await;
    reporter.set_service_status("", ServingStatus::NotServing).await;
    reporter.set_not_serving::<TasksServer<TasksDoor>>().await;
    reporter.set_not_serving::<WorkersDoor>().await;
}

/// Who calls, by the metadata of the call.
fn who(broker: &Broker, metadata: &MetadataMap) -> Result<Who, Status> {
    let authorization = metadata.get("authorization").map(|value| value.as_bytes());
    let who = broker.tokens.who(authorization);
    who.ok_or_else(|| Status::unauthenticated("a valid token is needed: `authorization: Bearer …`"))
}

/// Whether a caller may do something in a namespace.
fn admit(who: &Who, namespace: &Namespace) -> Result<(), Status> {
    if who.may(namespace) {
        return Ok(());
    }
    Err(Status::permission_denied(format!("this token is not for namespace {namespace}")))
}

/// The namespace of a call, if its caller may be there.
fn admitted(broker: &Broker, metadata: &MetadataMap, name: &str) -> Result<Namespace, Status> {
    // First who, then what: a stranger learns nothing about names.
    let who = who(broker, metadata)?;
    let namespace = Namespace::new(name).map_err(convert::invalid)?;
    admit(&who, &namespace)?;
    Ok(namespace)
}

/// Resolves when the broker stops taking.
async fn drains(draining: &mut watch::Receiver<bool>) {
    // An error means that the broker is gone altogether.
    _ = draining.wait_for(|draining| *draining).await;
}
