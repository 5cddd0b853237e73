//! Connections to PostgreSQL and to MySQL or MariaDB, from a URL.
//!
//! [`SqlOptions`] says where a database is, who connects, and how long a connect and a statement
//! may take. [`postgres::connect`] and [`mysql::connect`] open one connection;
//! [`Reconnecting`] keeps one open, with growing pauses after failures. TLS is rustls with ring and
//! always checks the server's certificate. There is no pool: a caller keeps as many connections as
//! it needs. No secret is in any error or debug output.

mod error;
pub mod mysql;
mod options;
pub mod postgres;
mod reconnect;
mod secret;
mod tls;

pub use error::SqlError;
pub use options::{SqlHost, SqlKind, SqlOptions};
pub use reconnect::{Pauses, Reconnecting};
pub use secret::SqlSecret;

pub use mysql_async;
pub use tokio_postgres;
