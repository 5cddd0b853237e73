//! One connection to a PostgreSQL server.
//!
//! [`PostgresClient`] owns the task that moves its bytes; both end together. Statements that
//! are started on one connection without waiting are sent in one go and answered in order.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};

use crate::error::SqlError;
use crate::options::{SqlHost, SqlOptions};
use crate::tls::{PostgresTls, client_config};

/// SQLSTATE classes that refuse a connection for good: credentials, names and rights.
const REFUSALS: [&str; 3] = ["28", "3D", "42"];

/// An open connection. It dereferences to the driver's client.
#[derive(Debug)]
pub struct PostgresClient {
    client: Client,
    driver: JoinHandle<()>,
    notified: Arc<Notify>,
    server: String,
    statement_timeout: Duration,
}

impl PostgresClient {
    /// Waits for a result at most for the statement timeout. After a timeout the connection is of
    /// no use: the server may still be busy with the statement.
    pub async fn within<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, SqlError> {
        match timeout(self.statement_timeout, statement).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(statement_error(&self.server, &error)),
            Err(_) => Err(SqlError::Silent(self.statement_timeout)),
        }
    }

    /// Waits for a notification of a channel that the session listens to. One that came since the
    /// last wait counts; several count as one.
    pub async fn notified(&self) {
        self.notified.notified().await;
    }

    /// Returns host and port of the server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }
}

impl Deref for PostgresClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for PostgresClient {
    fn drop(&mut self) {
        // A server that does not read would keep the task alive.
        self.driver.abort();
    }
}

/// Connects to the first of the servers that accepts writes. A single server is taken as it is.
pub async fn connect(options: &SqlOptions) -> Result<PostgresClient, SqlError> {
    let mut last = SqlError::Options("no host is given".to_owned());
    for host in &options.hosts {
        match timeout(options.connect_timeout, connect_to(options, host)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => last = error,
            Err(_) => last = unreachable(host, "no answer in time"),
        }
    }
    Err(last)
}

fn unreachable(host: &SqlHost, why: impl ToString) -> SqlError {
    SqlError::Unreachable { server: host.to_string(), why: why.to_string() }
}

async fn connect_to(options: &SqlOptions, host: &SqlHost) -> Result<PostgresClient, SqlError> {
    let mut config = Config::new();
    config.user(&options.user).dbname(&options.database).application_name(&options.application);
    config.ssl_mode(if options.tls { SslMode::Require } else { SslMode::Disable });
    if let Some(password) = &options.password {
        config.password(password.reveal());
    }
    let stream = TcpStream::connect((host.host.as_str(), host.port))
        .await
        .map_err(|error| unreachable(host, error))?;
    stream.set_nodelay(true).map_err(|error| unreachable(host, error))?;
    let notified = Arc::new(Notify::new());
    let (client, driver) = if options.tls {
        let tls = PostgresTls::new(client_config(options)?, &host.host)?;
        let connected = config.connect_raw(stream, tls).await;
        let (client, connection) = connected.map_err(|error| connect_error(host, &error))?;
        (client, tokio::spawn(drive(connection, Arc::clone(&notified))))
    } else {
        let connected = config.connect_raw(stream, NoTls).await;
        let (client, connection) = connected.map_err(|error| connect_error(host, &error))?;
        (client, tokio::spawn(drive(connection, Arc::clone(&notified))))
    };
    let (server, statement_timeout) = (host.to_string(), options.statement_timeout);
    let connection = PostgresClient { client, driver, notified, server, statement_timeout };
    prepare_session(&connection, options, host).await?;
    Ok(connection)
}

/// Moves the bytes of a connection until it ends, and passes notifications on.
async fn drive<T: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<TcpStream, T>,
    notified: Arc<Notify>,
) {
    poll_fn(|context| {
        loop {
            match ready!(connection.poll_message(context)) {
                Some(Ok(AsyncMessage::Notification(_))) => notified.notify_one(),
                Some(Ok(_)) => {}
                // Callers see the error by their statements.
                Some(Err(_)) | None => return Poll::Ready(()),
            }
        }
    })
    .await;
}

/// Bounds statements at the server, and refuses a server that accepts no writes if there are
/// others.
async fn prepare_session(
    connection: &PostgresClient,
    options: &SqlOptions,
    host: &SqlHost,
) -> Result<(), SqlError> {
    let milliseconds = options.statement_timeout.as_millis();
    let setting = format!("SET statement_timeout = {milliseconds}");
    connection.within(connection.batch_execute(&setting)).await?;
    if options.hosts.len() > 1 {
        let rows = connection.within(connection.simple_query("SHOW transaction_read_only")).await?;
        let read_only = rows.iter().any(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
            _ => false,
        });
        if read_only {
            return Err(unreachable(host, "it accepts no writes"));
        }
    }
    Ok(())
}

fn connect_error(host: &SqlHost, error: &tokio_postgres::Error) -> SqlError {
    match error.as_db_error() {
        Some(refusal) => {
            let code = refusal.code().code();
            let why = format!("{} ({code})", refusal.message());
            let server = host.to_string();
            if REFUSALS.iter().any(|class| code.starts_with(class)) {
                SqlError::Refused { server, why }
            } else {
                // Too many connections, starting up, shutting down.
                SqlError::Unreachable { server, why }
            }
        }
        None => unreachable(host, causes(error)),
    }
}

/// Turns an error of the driver into ours. A server that ends the connection (57P01 and the like)
/// is unreachable, not a refusal of the statement.
#[must_use]
pub fn statement_error(server: &str, error: &tokio_postgres::Error) -> SqlError {
    let server = server.to_owned();
    match error.as_db_error() {
        Some(refusal) => {
            let (code, message) = (refusal.code().code(), refusal.message().to_owned());
            // The server shuts down or crashed (57P01 to 57P05), or a protocol state is lost (08).
            if code.starts_with("57P") || code.starts_with("08") {
                SqlError::Unreachable { server, why: format!("{message} ({code})") }
            } else {
                SqlError::Statement { code: code.to_owned(), message }
            }
        }
        None if error.is_closed() => {
            SqlError::Unreachable { server, why: "the connection is closed".to_owned() }
        }
        None => match std::error::Error::source(error) {
            Some(source) if source.is::<std::io::Error>() => {
                SqlError::Unreachable { server, why: causes(error) }
            }
            _ => SqlError::Unexpected(causes(error)),
        },
    }
}

/// Returns an error with its causes, which the driver's own text leaves out.
fn causes(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
