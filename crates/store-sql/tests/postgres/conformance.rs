//! The conformance suite on PostgreSQL.

punctual_store::conformance!(crate::subject::PostgresSubject::new());
punctual_store::conformance_durable!(crate::subject::PostgresSubject::new());
punctual_store::conformance_membership!(crate::subject::PostgresSubject::new());
