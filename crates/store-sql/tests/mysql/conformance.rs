//! The conformance suite on MariaDB.

punctual_store::conformance!(crate::subject::MysqlSubject::new());
punctual_store::conformance_durable!(crate::subject::MysqlSubject::new());
punctual_store::conformance_membership!(crate::subject::MysqlSubject::new());
