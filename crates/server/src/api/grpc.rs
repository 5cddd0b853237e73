//! The gRPC API: the same operations as HTTP, on the same port, with less overhead per task.
//!
//! `tasks`, `reads`, `list`, `namespaces`, `preview`, `whoami`, `alarms`, `operations`, `measures`
//! and `workers` hold the calls, `caller` checks who may use a namespace. `convert` and
//! `deliveries` are the files that know both messages and the types of the core. The token of a
//! call is checked before its messages are read. Batches, messages and what a stream keeps pending
//! are bounded, and streams end when the broker drains.

mod alarms;
mod caller;
mod convert;
mod deliveries;
mod list;
mod measures;
mod namespaces;
mod operations;
mod preview;
mod reads;
mod tasks;
mod whoami;
mod workers;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http_body_util::BodyExt as _;
use punctual_proto::DESCRIPTORS;
use punctual_proto::v1::alarms_server::AlarmsServer;
use punctual_proto::v1::measures_server::MeasuresServer;
use punctual_proto::v1::operations_server::OperationsServer;
use punctual_proto::v1::tasks_server::TasksServer;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::body::{BodyKind, BodyOwner, BoundedBody, discard_refused};
use super::held_answer::{AnswerPermit, hold};
use super::http::{check_host, note_caller};
use super::limits::{ApiLimits, SMALL_BYTES_MAX};
use crate::auth::{CallRight, Identity};
use crate::broker::Broker;
use crate::peer;
use crate::problem::Problem;
use alarms::AlarmsApi;
use measures::MeasuresApi;
use operations::OperationsApi;
use tasks::TasksApi;
use workers::WorkersApi;

/// Bytes of a message: 10000 tasks of 800 bytes, or 30 with the largest payload.
const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a message to the health and reflection services: a name.
const PUBLIC_BYTES_MAX: usize = 4 * 1024;

/// The health service, which a draining broker still serves, and its one call that lasts.
const HEALTH: &str = "/grpc.health.";
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Returns all gRPC services, with health and reflection, as routes.
pub(crate) fn routes(broker: &Arc<Broker>) -> Router {
    // Workers compare this to recognize a restart: delivery tokens of an earlier run are stale.
    let run = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    let tasks = TasksServer::new(TasksApi::new(Arc::clone(broker)))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let alarms = AlarmsServer::new(AlarmsApi::new(Arc::clone(broker)))
        .max_decoding_message_size(SMALL_BYTES_MAX);
    let operations = OperationsServer::new(OperationsApi::new(Arc::clone(broker)))
        .max_decoding_message_size(SMALL_BYTES_MAX);
    let measures = MeasuresServer::new(MeasuresApi::new(Arc::clone(broker)))
        .max_decoding_message_size(SMALL_BYTES_MAX);
    let workers = WorkersApi::new(Arc::clone(broker), run);
    let (reporter, health) = tonic_health::server::health_reporter();
    let health = health.max_decoding_message_size(PUBLIC_BYTES_MAX);
    tokio::spawn(report_health(reporter, broker.draining.clone()));
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut routes = Routes::builder();
    routes.add_service(tasks).add_service(alarms).add_service(workers).add_service(health);
    routes.add_service(operations).add_service(measures);
    // Some tools still use the older version of the protocol.
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => {
            let v1 = v1.max_decoding_message_size(PUBLIC_BYTES_MAX);
            let v1alpha = v1alpha.max_decoding_message_size(PUBLIC_BYTES_MAX);
            routes.add_service(v1).add_service(v1alpha);
        }
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
    routes.merge(peers.layer(from_fn_with_state(Arc::clone(broker), check_peer)))
}

/// Checks a call by its head, before anything of its messages is read, and bounds its body. A
/// draining broker refuses new calls except health checks; calls in flight end by themselves.
async fn check_call(State(broker): State<Arc<Broker>>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    let version = head.version;
    if let Err(problem) = check_page(&broker, &head) {
        discard_refused(version, body).await;
        return problem.into_response();
    }
    let (right, watch) = match admit(&broker, &head) {
        Ok(admitted) => admitted,
        Err(problem) => {
            discard_refused(version, body).await;
            return convert::to_status(&problem).into_http();
        }
    };
    let identity = right.as_ref().map(|right| &right.identity);
    let (owner, limits) = (BodyOwner::of_caller(identity), Arc::clone(&broker.limits));
    drop(broker);
    head.extensions.insert(right);
    let kept = AnswerPermit::default();
    head.extensions.insert(kept.clone());
    let to_error = |problem| convert::to_status(&problem).into();
    let body = BoundedBody::new(body, body_kind(head.uri.path()), owner, limits, to_error);
    let in_use = body.large_permit();
    let response = next.run(Request::from_parts(head, Body::new(body))).await;
    drop(in_use);
    match (kept.take(), watch) {
        (Some(permit), _) => response.map(|body| hold(body, permit)),
        // The permit lasts as long as the answer.
        (None, Some(permit)) => response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &permit;
                frame
            }))
        }),
        (None, None) => response,
    }
}

/// Checks token and limits by the head of a call. Returns the caller, and a permit if the call is a
/// health watch.
fn admit(
    broker: &Broker,
    head: &Parts,
) -> Result<(Option<CallRight>, Option<OwnedSemaphorePermit>), Problem> {
    let path = head.uri.path();
    let right = broker.tokens.check_call(path, &head.headers);
    let caller = right.as_ref().ok().and_then(Option::as_ref);
    note_caller(head, caller.map(|right| &right.identity))?;
    let right = right?;
    if broker.is_draining() && !path.starts_with(HEALTH) {
        return Err(Problem::stopping());
    }
    let watch = (path == WATCH).then(|| Arc::clone(&broker.limits.watches).try_acquire_owned());
    let watch = watch.transpose().map_err(|_| ApiLimits::too_many_watches())?;
    Ok((right, watch))
}

/// What a call reads. A call that is not listed reads one message.
fn body_kind(path: &str) -> BodyKind {
    match path {
        "/punctual.v1.Tasks/ScheduleMany" | "/punctual.v1.Workers/Work" => BodyKind::LongStream,
        _ if path.starts_with("/grpc.reflection.") => BodyKind::ShortStream,
        _ => BodyKind::Message,
    }
}

/// Refuses calls of web pages of other origins.
fn check_page(broker: &Broker, head: &Parts) -> Result<(), Problem> {
    check_host(head)?;
    broker.browser_policy.check(&head.uri, &head.headers)
}

/// Checks a call of another broker. It is refused inside if it does not have the secret.
async fn check_peer(State(broker): State<Arc<Broker>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let secret = broker.cluster.as_ref().map(|shared| &shared.secret);
    let is_peer = secret.is_some_and(|secret| secret.is_in(&head.headers));
    let caller = is_peer.then_some(&Identity::Admin);
    if let Err(problem) = check_page(&broker, &head).and_then(|()| note_caller(&head, caller)) {
        discard_refused(head.version, body).await;
        return problem.into_response();
    }
    drop(broker);
    next.run(Request::from_parts(head, body)).await
}

/// Reports `SERVING` until the broker drains.
async fn report_health(reporter: HealthReporter, mut draining: watch::Receiver<bool>) {
    reporter.set_serving::<TasksServer<TasksApi>>().await;
    reporter.set_serving::<AlarmsServer<AlarmsApi>>().await;
    reporter.set_serving::<OperationsServer<OperationsApi>>().await;
    reporter.set_serving::<MeasuresServer<MeasuresApi>>().await;
    reporter.set_serving::<WorkersApi>().await;
    drained(&mut draining).await;
    reporter.set_service_status("", ServingStatus::NotServing).await;
    reporter.set_not_serving::<TasksServer<TasksApi>>().await;
    reporter.set_not_serving::<AlarmsServer<AlarmsApi>>().await;
    reporter.set_not_serving::<OperationsServer<OperationsApi>>().await;
    reporter.set_not_serving::<MeasuresServer<MeasuresApi>>().await;
    reporter.set_not_serving::<WorkersApi>().await;
}

/// Resolves when the broker drains.
async fn drained(draining: &mut watch::Receiver<bool>) {
    // An error means that the broker was dropped.
    _ = draining.wait_for(|draining| *draining).await;
}
