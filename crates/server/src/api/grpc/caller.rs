//! The caller of a gRPC call, and whether it may use the namespace that a message names.

use punctual_core::Namespace;
use tonic::Status;

use super::convert;
use crate::auth::Identity;
use crate::problem::Problem;

/// The caller, as `grpc` has found it.
pub(super) fn identify<T>(request: &tonic::Request<T>) -> Result<Identity, Status> {
    let identity = request.extensions().get::<Option<Identity>>().cloned().flatten();
    identity.ok_or_else(|| convert::to_status(&Problem::unauthenticated()))
}

/// Checks that a caller may use a namespace.
pub(super) fn authorize(identity: &Identity, namespace: &Namespace) -> Result<(), Status> {
    if identity.may_use(namespace) {
        return Ok(());
    }
    Err(convert::to_status(&Problem::namespace_forbidden(namespace)))
}

/// The namespace that a call names, if its caller may use it.
pub(super) fn authorized_namespace<T>(
    request: &tonic::Request<T>,
    name: &str,
) -> Result<Namespace, Status> {
    // The token is checked first, so that callers without one learn nothing about names.
    let identity = identify(request)?;
    let namespace = Namespace::new(name).map_err(convert::invalid)?;
    authorize(&identity, &namespace)?;
    Ok(namespace)
}
