//! PostgreSQL: its tables and statements, and connections that have them prepared.

pub(crate) mod schema;
pub(crate) mod session;
pub(crate) mod values;
