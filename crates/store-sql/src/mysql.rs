//! MySQL and MariaDB: their tables and statements, and connections.
//!
//! The statements are those that MySQL 8.0 and MariaDB 10.6 have in common. A batch is the text of
//! a whole transaction, in one packet if it fits: there are no arrays, and a connection waits for
//! each answer before it sends more.

mod batch;
mod database;
mod schema;
mod server;
mod session;
mod statements;
mod template;
mod values;

pub(crate) use database::MysqlDatabase;
