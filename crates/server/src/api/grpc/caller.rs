//! The caller of a gRPC call, whether it may use the namespace that a message names, and the action
//! that its call is.

use punctual_core::Namespace;
use tonic::Status;

use super::convert;
use crate::api::begun_action::BegunAction;
use crate::auth::CallRight;
use crate::broker::Broker;
use crate::problem::Problem;

/// The caller, as `grpc` has found it, with the right that the call requires.
pub(super) fn identify<T>(request: &tonic::Request<T>) -> Result<CallRight, Status> {
    let right = request.extensions().get::<Option<CallRight>>().cloned().flatten();
    right.ok_or_else(|| convert::to_status(&Problem::unauthenticated()))
}

/// Checks that a caller may use a namespace.
pub(super) fn authorize(right: &CallRight, namespace: &Namespace) -> Result<(), Status> {
    right.check(namespace).map_err(|problem| convert::to_status(&problem))
}

/// The namespace that a call names, if its caller may use it.
pub(super) fn authorized_namespace<T>(
    request: &tonic::Request<T>,
    name: &str,
) -> Result<Namespace, Status> {
    // The token is checked first, so that callers without one learn nothing about names.
    let right = identify(request)?;
    let namespace = Namespace::new(name).map_err(convert::invalid)?;
    authorize(&right, &namespace)?;
    Ok(namespace)
}

/// Checks that the caller of a touch may create the tasks that are missing.
pub(super) fn authorize_creation<T>(
    request: &tonic::Request<T>,
    namespace: &Namespace,
) -> Result<(), Status> {
    let right = identify(request)?;
    right.check_creates(namespace).map_err(|problem| convert::to_status(&problem))
}

/// The action of a caller with the right to operate. `call` is its name in the OpenAPI document.
pub(super) fn action<T>(
    broker: &Broker,
    request: &tonic::Request<T>,
    namespace: &Namespace,
    call: &'static str,
    name: &str,
) -> Result<BegunAction, Status> {
    Ok(BegunAction::new(broker, &identify(request)?.identity, namespace, call, name))
}

/// The action of a caller that may not produce. Programs make most of these calls.
pub(super) fn action_of_operator<T>(
    broker: &Broker,
    request: &tonic::Request<T>,
    namespace: &Namespace,
    call: &'static str,
) -> Result<Option<BegunAction>, Status> {
    let right = identify(request)?;
    let is_operator = right.check_creates(namespace).is_err();
    let action = || BegunAction::new(broker, &right.identity, namespace, call, "");
    Ok(is_operator.then(action))
}
