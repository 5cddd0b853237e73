//! The caller of a gRPC call, and whether it may use the namespace that a message names.

use punctual_core::Namespace;
use tonic::Status;

use super::convert;
use crate::auth::CallRight;
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
