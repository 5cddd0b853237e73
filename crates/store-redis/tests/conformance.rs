//! The conformance suite over the Redis store: on a single server, and on a Cluster.

mod servers;

mod single {
    punctual_store::conformance!(crate::servers::subject::Named::single());
    punctual_store::conformance_durable!(crate::servers::subject::Named::single());
    punctual_store::conformance_membership!(crate::servers::subject::Named::single());
}

mod cluster {
    punctual_store::conformance!(crate::servers::subject::Named::cluster());
    punctual_store::conformance_durable!(crate::servers::subject::Named::cluster());
    punctual_store::conformance_membership!(crate::servers::subject::Named::cluster());
}
