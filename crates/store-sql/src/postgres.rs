//! PostgreSQL: its tables and statements, and connections that have them prepared.
//!
//! A batch is sent in one go: `BEGIN`, the fence, at most nine statements with arrays, `COMMIT`.

mod batch;
mod database;
mod schema;
mod server;
mod session;
mod statements;
mod values;

pub(crate) use database::PostgresDatabase;
