//! One connection to a MySQL or MariaDB server.
//!
//! The driver's `Conn` runs one statement at a time. [`within`] bounds a statement for the caller;
//! a connection whose statement timed out is dropped.

use std::future::Future;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, SslOpts};
use tokio::time::timeout;

use crate::error::SqlError;
use crate::options::{SqlHost, SqlOptions};

/// How long a connection may be silent before the system checks whether the server is there. A
/// connection that was dropped in the middle of a statement waits for the rest of its answer.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How many prepared statements a connection keeps.
const STATEMENTS_MAX: usize = 128;
/// Errors of MySQL that refuse a connection for good: rights, credentials, unknown database.
const REFUSALS: [u16; 4] = [1044, 1045, 1049, 1698];
/// Errors with which a server ends a connection or refuses one for now: too many connections,
/// shutdown, killed, aborted.
const ENDINGS: [u16; 6] = [1040, 1053, 1927, 1184, 1152, 3169];

/// Connects to the first of the servers that accepts writes. A single server is taken as it is.
pub async fn connect(options: &SqlOptions) -> Result<Conn, SqlError> {
    let mut last = SqlError::Options("no host is given".to_owned());
    for host in &options.hosts {
        match timeout(options.connect_timeout, connect_to(options, host)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => last = error,
            Err(_) => {
                let (server, why) = (host.to_string(), "no answer in time".to_owned());
                last = SqlError::Unreachable { server, why };
            }
        }
    }
    Err(last)
}

/// Waits for a result at most for `limit`.
pub async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, mysql_async::Error>>,
) -> Result<T, SqlError> {
    match timeout(limit, statement).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(statement_error(error)),
        Err(_) => Err(SqlError::Silent(limit)),
    }
}

async fn connect_to(options: &SqlOptions, host: &SqlHost) -> Result<Conn, SqlError> {
    let mut connection = Conn::new(driver_options(options, host))
        .await
        .map_err(|error| connect_error(host, error))?;
    let read_only = "SELECT @@global.read_only";
    if options.hosts.len() > 1 {
        let value: Option<u8> =
            within(options.statement_timeout, connection.query_first(read_only)).await?;
        if value != Some(0) {
            let why = "it accepts no writes".to_owned();
            return Err(SqlError::Unreachable { server: host.to_string(), why });
        }
    }
    Ok(connection)
}

fn driver_options(options: &SqlOptions, host: &SqlHost) -> Opts {
    let mut builder = OptsBuilder::default()
        .ip_or_hostname(host.host.clone())
        .tcp_port(host.port)
        .user(Some(options.user.clone()))
        .pass(options.password.as_ref().map(|password| password.reveal().to_owned()))
        .db_name(Some(options.database.clone()))
        .tcp_nodelay(true)
        .tcp_keepalive(Some(KEEPALIVE))
        .prefer_socket(false)
        .stmt_cache_size(STATEMENTS_MAX);
    if options.tls {
        // Ignored: another call may have installed the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut tls = SslOpts::default();
        if let Some(pem) = &options.authority_pem {
            tls = tls.with_root_certs(vec![pem.clone().into()]).with_disable_built_in_roots(true);
        }
        builder = builder.ssl_opts(Some(tls));
    }
    builder.into()
}

fn connect_error(host: &SqlHost, error: mysql_async::Error) -> SqlError {
    let server = host.to_string();
    match error {
        mysql_async::Error::Server(refusal) => {
            let why = format!("{} ({})", refusal.message, refusal.code);
            if REFUSALS.contains(&refusal.code) {
                SqlError::Refused { server, why }
            } else {
                SqlError::Unreachable { server, why }
            }
        }
        other => SqlError::Unreachable { server, why: other.to_string() },
    }
}

/// Turns an error of the driver into ours.
#[must_use]
pub fn statement_error(error: mysql_async::Error) -> SqlError {
    let server = "the database".to_owned();
    match error {
        mysql_async::Error::Server(refusal) if ENDINGS.contains(&refusal.code) => {
            let why = format!("{} ({})", refusal.message, refusal.code);
            SqlError::Unreachable { server, why }
        }
        mysql_async::Error::Server(refusal) => {
            SqlError::Statement { code: refusal.code.to_string(), message: refusal.message }
        }
        mysql_async::Error::Io(error) => SqlError::Unreachable { server, why: error.to_string() },
        mysql_async::Error::Driver(
            error @ (mysql_async::DriverError::ConnectionClosed
            | mysql_async::DriverError::PacketOutOfOrder),
        ) => SqlError::Unreachable { server, why: error.to_string() },
        other => SqlError::Unexpected(other.to_string()),
    }
}
