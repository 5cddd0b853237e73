//! Connections to a Redis, single or Cluster, that reconnect by themselves.
//!
//! [`RedisConnection`] sends commands and script calls and returns their replies within the
//! timeout. A connection that failed is dropped, and the next call opens a new one. Nothing is
//! retried without the caller's knowledge, except what Redis itself redirects (MOVED, ASK) and a
//! script that the server does not have yet. `WAIT` is sent over the same connection as the write,
//! directly after it.
//!
//! `script` builds the calls; `reply` takes replies apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use punctual_store::StoreError;
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, Pipeline, RedisError,
    ServerErrorKind, TlsCertificates, Value,
};
use tokio::sync::Mutex;

use crate::error::{RedisOpenError, RedisUnavailable, store_error};
use crate::options::RedisOptions;
use crate::transport::reply;
use crate::transport::script::{ScriptCall, ScriptForm};

/// The largest number of redirections that one request follows, or of waits for a slot that moves.
const REDIRECTIONS_MAX: u32 = 8;
/// The longest pause before a redirection is followed, in milliseconds.
const REDIRECTION_PAUSE_MAX_MS: u64 = 200;
/// Consecutive failures after which the slots of a Cluster are read again. The client library
/// replaces single connections itself.
const FAILURES_MAX: u32 = 2;

/// The role of a server that accepts writes, as `ROLE` returns it.
const ROLE_OF_WRITES: &str = "master"; // words: allow

/// Whether Redis is a single server or a Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedisKind {
    Single,
    Cluster,
}

/// What to wait for after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Nothing,
    Replica,
    Synced,
}

/// A reply, and whether the wait after it succeeded.
pub(crate) struct WaitedReply {
    pub(crate) value: Value,
    pub(crate) waited: Result<(), RedisUnavailable>,
}

/// The addresses and timeouts of a Redis.
pub(crate) struct RedisAddress {
    pub(crate) kind: RedisKind,
    clients: Vec<Client>,
    /// The client to try first: the one after the last that failed.
    first: AtomicUsize,
    cluster: Option<redis::cluster::ClusterClient>,
    connect_timeout: Duration,
    timeout: Duration,
}

impl RedisAddress {
    pub(crate) fn new(options: &RedisOptions, kind: RedisKind) -> Result<Self, RedisOpenError> {
        let invalid =
            |error: RedisError| RedisOpenError::Options(format!("invalid Redis address: {error}"));
        if options.urls.is_empty() {
            return Err(RedisOpenError::Options(
                "no Redis address is configured; give at least one redis:// URL".to_owned(),
            ));
        }
        if options.urls.iter().any(|url| url.starts_with("rediss:")) {
            // Ignored: another call may have installed the same provider.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let certificates = options
            .authority_pem
            .as_ref()
            .map(|pem| TlsCertificates { client_tls: None, root_cert: Some(pem.clone()) });
        let client = |url: &String| match certificates.clone() {
            Some(certificates) => Client::build_with_tls(url.as_str(), certificates),
            None => Client::open(url.as_str()),
        };
        let clients = options.urls.iter().map(client).collect::<Result<Vec<_>, _>>();
        let clients = clients.map_err(invalid)?;
        let cluster = match kind {
            RedisKind::Single => None,
            RedisKind::Cluster => {
                let mut builder = redis::cluster::ClusterClientBuilder::new(options.urls.clone())
                    .retries(REDIRECTIONS_MAX)
                    .max_retry_wait(REDIRECTION_PAUSE_MAX_MS)
                    .connection_timeout(options.connect_timeout)
                    .response_timeout(options.timeout)
                    .overall_response_timeout(Some(options.timeout));
                if let Some(certificates) = certificates {
                    builder = builder.certs(certificates);
                }
                Some(builder.build().map_err(invalid)?)
            }
        };
        let RedisOptions { connect_timeout, timeout, .. } = *options;
        let first = AtomicUsize::new(0);
        Ok(Self { kind, clients, first, cluster, connect_timeout, timeout })
    }

    /// Returns host and port of the servers of the options.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (&str, u16)> {
        let addresses = self.clients.iter().map(|client| client.get_connection_info().addr());
        addresses.filter_map(|address| match address {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host.as_str(), *port))
            }
            _ => None,
        })
    }

    async fn connect(&self) -> Result<OpenConnection, StoreError> {
        match &self.cluster {
            Some(cluster) => {
                let connected = cluster.get_async_connection().await;
                connected.map(OpenConnection::Cluster).map_err(store_error)
            }
            None => self.connect_single().await,
        }
    }

    /// Connects to the first of the configured servers that accepts writes.
    async fn connect_single(&self) -> Result<OpenConnection, StoreError> {
        let mut last = StoreError::from(RedisUnavailable::NoServerForWrites);
        for _ in &self.clients {
            // The index moves before the attempt: if this caller times out, the next one tries the
            // next server.
            let index = self.first.fetch_add(1, Ordering::Relaxed) % self.clients.len();
            let connecting = self.connect_to(&self.clients[index]);
            match tokio::time::timeout(self.connect_timeout, connecting).await {
                Ok(Ok(connection)) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(OpenConnection::Single(connection));
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = RedisUnavailable::Silent(self.connect_timeout.as_millis()).into(),
            }
        }
        Err(last)
    }

    async fn connect_to(&self, client: &Client) -> Result<MultiplexedConnection, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.timeout));
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connected.map_err(store_error)?;
        if self.clients.len() > 1 {
            let reply = connection.send_packed_command(&redis::cmd("ROLE")).await;
            let role = reply::array(reply.map_err(store_error)?)?;
            let role = role.first().and_then(|first| reply::text(first).ok());
            if role != Some(ROLE_OF_WRITES) {
                return Err(RedisUnavailable::NoServerForWrites.into());
            }
        }
        Ok(connection)
    }
}

#[derive(Clone)]
enum OpenConnection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A connection to a single server, or one to each server of a Cluster.
pub(crate) struct RedisConnection {
    address: Arc<RedisAddress>,
    current: Mutex<CurrentConnection>,
    failures: AtomicU32,
}

#[derive(Default)]
struct CurrentConnection {
    connection: Option<OpenConnection>,
    /// Distinguishes a connection that failed from its successor.
    generation: u64,
}

impl RedisConnection {
    pub(crate) fn new(address: Arc<RedisAddress>) -> Self {
        Self { address, current: Mutex::default(), failures: AtomicU32::new(0) }
    }

    /// Calls a script that only reads, or whose writes need no wait.
    pub(crate) async fn call(&self, call: &ScriptCall<'_>) -> Result<Value, StoreError> {
        Ok(self.call_and_wait(call, Wait::Nothing).await?.value)
    }

    /// Calls a script and waits as `wait` demands. If the server does not have the script, sends
    /// its source.
    pub(crate) async fn call_and_wait(
        &self,
        call: &ScriptCall<'_>,
        wait: Wait,
    ) -> Result<WaitedReply, StoreError> {
        match self.send(call.command(ScriptForm::Digest), call.key(), wait).await {
            Err(CallError::NoScript) => {
                let again = self.send(call.command(ScriptForm::Source), call.key(), wait).await;
                again.map_err(CallError::into_store_error)
            }
            other => other.map_err(CallError::into_store_error),
        }
    }

    /// Sends one command that belongs to a key.
    pub(crate) async fn command(&self, command: Cmd, key: &str) -> Result<Value, StoreError> {
        let sent = self.send(command, key, Wait::Nothing).await;
        Ok(sent.map_err(CallError::into_store_error)?.value)
    }

    async fn send(&self, command: Cmd, key: &str, wait: Wait) -> Result<WaitedReply, CallError> {
        let timeout = self.address.timeout;
        // Connecting and calling share one timeout, so that a caller waits no longer than that.
        let sent = tokio::time::timeout(timeout, async {
            let (connection, generation) = self.connection().await?;
            let sent = match wait {
                Wait::Nothing => send_one(connection, command, key).await,
                _ => send_and_wait(connection, command, key, wait, timeout).await,
            };
            self.drop_if_unusable(&sent, generation).await;
            sent
        });
        match sent.await {
            Ok(answer) => answer,
            Err(_) => {
                self.drop_after_timeout().await;
                Err(RedisUnavailable::Silent(timeout.as_millis()).into())
            }
        }
    }

    /// Returns the connection, and opens a new one if the last one failed. One caller opens it; the
    /// others wait for it.
    async fn connection(&self) -> Result<(OpenConnection, u64), CallError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok((connection.clone(), current.generation));
        }
        let connection = self.address.connect().await.map_err(CallError::Store)?;
        current.generation += 1;
        current.connection = Some(connection.clone());
        Ok((connection, current.generation))
    }

    /// Drops the connection if the result shows that it is unusable.
    async fn drop_if_unusable(&self, answer: &Result<WaitedReply, CallError>, generation: u64) {
        let Err(CallError::Redis(error)) = answer else {
            self.failures.store(0, Ordering::Relaxed);
            return;
        };
        let unusable = match error.kind() {
            ErrorKind::Server(kind) => {
                // The server has become a replica.
                kind == ServerErrorKind::ReadOnly && self.address.kind == RedisKind::Single
            }
            ErrorKind::Extension => false,
            _ => {
                let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
                self.address.kind == RedisKind::Single || failures >= FAILURES_MAX
            }
        };
        if unusable {
            let mut current = self.current.lock().await;
            if current.generation == generation {
                current.connection = None;
                self.failures.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Drops the connection after a timeout: Redis may still run the call, but its reply is of no
    /// use.
    async fn drop_after_timeout(&self) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if self.address.kind == RedisKind::Cluster && failures < FAILURES_MAX {
            return;
        }
        // A caller that holds the lock is opening a newer connection.
        if let Ok(mut current) = self.current.try_lock() {
            current.connection = None;
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}

/// Why a call has no reply.
enum CallError {
    NoScript,
    Redis(RedisError),
    Store(StoreError),
}

impl CallError {
    fn into_store_error(self) -> StoreError {
        match self {
            Self::NoScript => StoreError::Broken(
                "Redis does not keep scripts: it lost one between two calls".to_owned(),
            ),
            Self::Redis(error) => store_error(error),
            Self::Store(error) => error,
        }
    }
}

impl From<RedisError> for CallError {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::NoScript) => Self::NoScript,
            _ => Self::Redis(error),
        }
    }
}

impl From<RedisUnavailable> for CallError {
    fn from(unavailable: RedisUnavailable) -> Self {
        Self::Store(unavailable.into())
    }
}

async fn send_one(
    connection: OpenConnection,
    command: Cmd,
    key: &str,
) -> Result<WaitedReply, CallError> {
    let value = match connection {
        OpenConnection::Single(mut connection) => connection.send_packed_command(&command).await,
        OpenConnection::Cluster(mut connection) => {
            let routing = RoutingInfo::SingleNode(route(key));
            connection.route_command(command, routing).await
        }
    };
    Ok(WaitedReply { value: value?.extract_error()?, waited: Ok(()) })
}

/// Sends a command and the wait for it in one pipeline: Redis waits for the last write of a
/// connection.
async fn send_and_wait(
    connection: OpenConnection,
    command: Cmd,
    key: &str,
    wait: Wait,
    timeout: Duration,
) -> Result<WaitedReply, CallError> {
    // Redis stops waiting a little before the caller does, so that its reply still arrives.
    let wait_ms = u64::try_from(timeout.as_millis() * 4 / 5).unwrap_or(u64::MAX).max(1);
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.add_command(command);
    match wait {
        Wait::Synced => pipeline.cmd("WAITAOF").arg(1).arg(0).arg(wait_ms),
        _ => pipeline.cmd("WAIT").arg(1).arg(wait_ms),
    };
    let values = match connection {
        OpenConnection::Single(mut connection) => {
            connection.send_packed_commands(&pipeline, 0, 2).await
        }
        OpenConnection::Cluster(mut connection) => {
            connection.route_pipeline(pipeline, 0, 2, route(key)).await
        }
    };
    let [answer, waited] = reply::tuple(Value::Array(values?)).map_err(CallError::Store)?;
    let value = answer.extract_error()?;
    let waited = match (wait, waited.extract_error()?) {
        (Wait::Replica, Value::Int(1..)) => Ok(()),
        (Wait::Replica, Value::Int(replicas)) => Err(RedisUnavailable::Replicas(replicas)),
        (Wait::Synced, Value::Array(counts)) => match counts.first() {
            Some(Value::Int(1..)) => Ok(()),
            _ => Err(RedisUnavailable::NotSynced),
        },
        _ => return Err(CallError::Store(reply::unexpected("a number of replicas"))),
    };
    Ok(WaitedReply { value, waited })
}

fn route(key: &str) -> SingleNodeRoutingInfo {
    SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master))
}
