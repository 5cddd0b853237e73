//! Links: standing connections to a Redis, single or Cluster, that come back by themselves.
//!
//! In: commands and calls of scripts. Out: their replies, each within the timeout, or why not. A connection that failed
//! is given up, and the next call makes a new one; nothing is retried behind the caller's back but
//! what Redis itself sends elsewhere (MOVED, ASK) or has not seen yet (a script).
//! Invariant: waiting for replicas goes over the same connection as the write, right behind it.
//! Not here: what is asked (`store`), what replies mean (`reply`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use punctual_store::StoreError;
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind,
    TlsCertificates, Value,
};
use tokio::sync::Mutex;

use crate::error::{RedisOpenError, RedisUnavailable, store_error};
use crate::options::RedisOptions;
use crate::reply;
use crate::script::{ScriptCall, ScriptForm};

/// Times that one request follows a redirection or waits for a slot to be moved, at most.
const REDIRECTIONS_MAX: u32 = 8;
/// The longest pause before following one, in milliseconds.
const REDIRECTION_PAUSE_MAX_MS: u64 = 200;
/// Failures in a row after which a Cluster is asked anew who serves what. The client mends single connections itself.
const FAILURES_MAX: u32 = 2;

/// What `ROLE` says of a server that takes writes.
const ROLE_OF_WRITES: &str = "master"; // words: allow

/// What kind of Redis it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedisKind {
    Single,
    Cluster,
}

/// What to wait for behind a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Nothing,
    Replica,
    Synced,
}

/// What was answered, and whether what was to be waited for has come about.
pub(crate) struct WaitedReply {
    pub(crate) value: Value,
    pub(crate) waited: Result<(), RedisUnavailable>,
}

/// How to connect.
pub(crate) struct RedisAddress {
    pub(crate) kind: RedisKind,
    clients: Vec<Client>,
    /// Which of them to try first: the one after the last that was of no use.
    first: AtomicUsize,
    cluster: Option<redis::cluster::ClusterClient>,
    connect_timeout: Duration,
    timeout: Duration,
}

impl RedisAddress {
    pub(crate) fn new(options: &RedisOptions, kind: RedisKind) -> Result<Self, RedisOpenError> {
        let wrong = |error: RedisError| RedisOpenError::Options(format!("Redis address: {error}"));
        if options.urls.is_empty() {
            return Err(RedisOpenError::Options("Redis address: none is given".to_owned()));
        }
        if options.urls.iter().any(|url| url.starts_with("rediss:")) {
            // Whoever was first has installed the same one.
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
        let clients = clients.map_err(wrong)?;
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
                Some(builder.build().map_err(wrong)?)
            }
        };
        let RedisOptions { connect_timeout, timeout, .. } = *options;
        let first = AtomicUsize::new(0);
        Ok(Self { kind, clients, first, cluster, connect_timeout, timeout })
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

    /// The first of the given servers that takes writes.
    async fn connect_single(&self) -> Result<OpenConnection, StoreError> {
        let mut last = StoreError::from(RedisUnavailable::NoServerForWrites);
        for _ in &self.clients {
            // Moved on before trying: a caller that runs out of time leaves the next server to the next caller.
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
            let role = connection.send_packed_command(&redis::cmd("ROLE")).await;
            let role = reply::array(role.map_err(store_error)?)?;
            let takes_writes = role.first().and_then(|first| reply::text(first).ok());
            if takes_writes != Some(ROLE_OF_WRITES) {
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

/// One connection, or one to each server of a Cluster.
pub(crate) struct RedisConnection {
    address: Arc<RedisAddress>,
    current: Mutex<CurrentConnection>,
    failures: AtomicU32,
}

#[derive(Default)]
struct CurrentConnection {
    connection: Option<OpenConnection>,
    /// Tells a connection that failed from the one that took its place.
    generation: u64,
}

impl RedisConnection {
    pub(crate) fn new(address: Arc<RedisAddress>) -> Self {
        Self { address, current: Mutex::default(), failures: AtomicU32::new(0) }
    }

    /// Calls a script that only reads, or whose writing need not be waited for.
    pub(crate) async fn call(&self, call: &ScriptCall<'_>) -> Result<Value, StoreError> {
        Ok(self.call_and_wait(call, Wait::Nothing).await?.value)
    }

    /// Calls a script and waits for what it wrote. One that the server does not know is sent whole.
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

    /// Sends one command about a key.
    pub(crate) async fn command(&self, command: Cmd, key: &str) -> Result<Value, StoreError> {
        let sent = self.send(command, key, Wait::Nothing).await;
        Ok(sent.map_err(CallError::into_store_error)?.value)
    }

    async fn send(&self, command: Cmd, key: &str, wait: Wait) -> Result<WaitedReply, CallError> {
        let timeout = self.address.timeout;
        // Connecting and asking have the same bound, so that a caller waits for one timeout in all.
        let sent = tokio::time::timeout(timeout, async {
            let (connection, generation) = self.connection().await?;
            let sent = match wait {
                Wait::Nothing => send_one(connection, command, key).await,
                _ => send_and_wait(connection, command, key, wait, timeout).await,
            };
            self.judge(&sent, generation).await;
            sent
        });
        match sent.await {
            Ok(answer) => answer,
            Err(_) => {
                self.give_up().await;
                Err(RedisUnavailable::Silent(timeout.as_millis()).into())
            }
        }
    }

    /// The connection, made anew if the last one failed. One caller makes it; the others wait for that.
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

    /// Gives a connection up that is of no use any more.
    async fn judge(&self, answer: &Result<WaitedReply, CallError>, generation: u64) {
        let Err(CallError::Redis(error)) = answer else {
            self.failures.store(0, Ordering::Relaxed);
            return;
        };
        let useless = match error.kind() {
            ErrorKind::Server(kind) => {
                // It is a replica by now, or was told to be.
                kind == ServerErrorKind::ReadOnly && self.address.kind == RedisKind::Single
            }
            ErrorKind::Extension => false,
            _ => {
                let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
                self.address.kind == RedisKind::Single || failures >= FAILURES_MAX
            }
        };
        if useless {
            let mut current = self.current.lock().await;
            if current.generation == generation {
                current.connection = None;
                self.failures.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Nothing came within the time: what was asked may still be made, and its answer is of no use.
    async fn give_up(&self) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if self.address.kind == RedisKind::Cluster && failures < FAILURES_MAX {
            return;
        }
        // Whoever is connecting right now has a newer one.
        if let Ok(mut current) = self.current.try_lock() {
            current.connection = None;
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}

/// Why there is no reply.
enum CallError {
    NoScript,
    Redis(RedisError),
    Store(StoreError),
}

impl CallError {
    fn into_store_error(self) -> StoreError {
        match self {
            Self::NoScript => StoreError::Broken("Redis forgets scripts at once".to_owned()),
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

/// Waiting goes right behind the write, over the same connection: Redis waits for the last write of a connection.
async fn send_and_wait(
    connection: OpenConnection,
    command: Cmd,
    key: &str,
    wait: Wait,
    timeout: Duration,
) -> Result<WaitedReply, CallError> {
    // Redis gives up a little before the caller does, so that its answer still arrives.
    let patience_ms = u64::try_from(timeout.as_millis() * 4 / 5).unwrap_or(u64::MAX).max(1);
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.add_command(command);
    match wait {
        Wait::Synced => pipeline.cmd("WAITAOF").arg(1).arg(0).arg(patience_ms),
        _ => pipeline.cmd("WAIT").arg(1).arg(patience_ms),
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
