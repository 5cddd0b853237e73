//! The conformance suite on a single server and on a Cluster.

mod single {
    punctual_store::conformance!(crate::subject::RedisSubject::single());
    punctual_store::conformance_durable!(crate::subject::RedisSubject::single());
    punctual_store::conformance_membership!(crate::subject::RedisSubject::single());
}

mod cluster {
    punctual_store::conformance!(crate::subject::RedisSubject::cluster());
    punctual_store::conformance_durable!(crate::subject::RedisSubject::cluster());
    punctual_store::conformance_membership!(crate::subject::RedisSubject::cluster());
}
