//! Streams of Redis as sources: a consumer group that all brokers share.
//!
//! The fields of an entry are its headers, and the field `payload` is its body. An entry is
//! confirmed by XACK. One that its reader has not confirmed for a time is claimed by
//! another; a session begins with what its broker had taken before.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use punctual_core::Timestamp;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, IntoConnectionInfo as _,
    Pipeline, RedisConnectionInfo, RedisError, TlsCertificates, Value, cmd,
};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::message::SourceMessage;
use super::session::{MessageEnd, MessageSession, MessageSource, TakeBound};
use crate::endpoint::Endpoint;
use crate::sink::{DynFuture, SessionLost};
use crate::source_settings::MessageSourceSettings;

/// The field with the body of an entry.
const PAYLOAD: &str = "payload";
/// How often entries of other readers are looked at.
const CLAIM_EVERY: Duration = Duration::from_secs(5);
/// How long a consumer without entries is kept in the group.
const CONSUMER_KEPT: Duration = Duration::from_secs(3600);
/// How long an answer may take. Waits for entries are shorter.
const RESPONSE_MAX: Duration = Duration::from_secs(8);
/// Entries of the first read. The size of entries is not known before they are read, so later
/// reads have more of them if they are small.
const FIRST_READ: usize = 64;
/// Deletes a consumer, and all that have been idle for long, unless they have entries: those would
/// be lost with it.
const LEAVE: &str = "
for _, found in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for at = 1, #found, 2 do consumer[found[at]] = found[at + 1] end
  local old = consumer.idle > tonumber(ARGV[3])
  if consumer.pending == 0 and (old or consumer.name == ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
  end
end";

/// A stream as a source.
#[derive(Debug)]
pub(crate) struct RedisStreamSource(Arc<StreamGroup>);

#[derive(Debug)]
struct StreamGroup {
    endpoint: Endpoint,
    stream: String,
    group: String,
    /// The stream of rejected entries.
    rejected: String,
    /// The name of this broker in the group.
    consumer: String,
    /// How long an entry stays with a reader that does not confirm it.
    claim_after: Duration,
}

struct RedisSourceSession {
    connection: MultiplexedConnection,
    group: Arc<StreamGroup>,
    /// The last entry that this broker had taken before, while there are more.
    own: Option<String>,
    /// Entries that are taken and not settled.
    in_hand: HashSet<String>,
    claims: Interval,
    count: usize,
}

impl RedisStreamSource {
    pub(crate) fn new(settings: &MessageSourceSettings, reader: &str) -> Self {
        let stream = settings.from.clone();
        let rejected = settings.rejected.clone();
        Self(Arc::new(StreamGroup {
            endpoint: settings.link.endpoint.clone(),
            group: settings.group.clone(),
            rejected: rejected.unwrap_or_else(|| format!("{stream}:rejected")),
            consumer: format!("punctual-{reader}"),
            claim_after: settings.claim_after,
            stream,
        }))
    }
}

impl StreamGroup {
    async fn connect(&self) -> Result<MultiplexedConnection, String> {
        let mut problem = "no host".to_owned();
        for host in &self.endpoint.hosts {
            match self.connect_to(&host.host, host.port).await {
                Ok(connection) => return Ok(connection),
                Err(error) => problem = format!("{host}: {error}"),
            }
        }
        Err(problem)
    }

    async fn connect_to(&self, host: &str, port: u16) -> Result<MultiplexedConnection, RedisError> {
        let Endpoint { user, password, path, tls, .. } = &self.endpoint;
        let host = host.to_owned();
        let address = match tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let mut settings = RedisConnectionInfo::default();
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password.reveal());
        }
        if let Some(database) = path.as_deref().and_then(|path| path.parse().ok()) {
            settings = settings.set_db(database);
        }
        let info = address.into_connection_info()?.set_redis_settings(settings);
        let client = match tls {
            None => Client::open(info)?,
            Some(tls) => {
                // Without it, the client of Redis does not know which implementation to use.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let client_tls = tls.client_pem.clone();
                let client_tls = client_tls
                    .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
                let root_cert = tls.authority_pem.clone();
                Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })?
            }
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(crate::connection_settings::CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_MAX));
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn open(self: Arc<Self>) -> Result<RedisSourceSession, String> {
        let mut connection = self.connect().await?;
        let mut create = cmd("XGROUP");
        create.arg("CREATE").arg(&self.stream).arg(&self.group).arg("0").arg("MKSTREAM");
        let created: Result<Value, RedisError> = create.query_async(&mut connection).await;
        match created {
            Err(error) if error.code() != Some("BUSYGROUP") => return Err(error.to_string()),
            Ok(_) | Err(_) => {}
        }
        let left: Result<Value, RedisError> = self.leave("").query_async(&mut connection).await;
        left.map_err(|error| error.to_string())?;
        let mut claims = interval(CLAIM_EVERY);
        claims.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(RedisSourceSession {
            connection,
            group: self,
            own: Some("0".to_owned()),
            in_hand: HashSet::new(),
            claims,
            count: FIRST_READ,
        })
    }

    /// Deletes a consumer without entries, and those that are idle.
    fn leave(&self, consumer: &str) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(LEAVE).arg(1).arg(&self.stream).arg(&self.group).arg(consumer);
        command.arg(millis(CONSUMER_KEPT));
        command
    }
}

impl MessageSource for RedisStreamSource {
    fn open(&self) -> DynFuture<'_, Result<Box<dyn MessageSession>, String>> {
        Box::pin(async {
            let session = Arc::clone(&self.0).open().await?;
            Ok(Box::new(session) as Box<dyn MessageSession>)
        })
    }
}

impl RedisSourceSession {
    async fn query(&mut self, command: &Cmd) -> Result<Value, SessionLost> {
        command.query_async(&mut self.connection).await.map_err(lost)
    }

    async fn take_entries(&mut self, bound: TakeBound) -> Result<Vec<SourceMessage>, SessionLost> {
        let count = self.count.min(bound.messages);
        let mut entries = Vec::new();
        if let Some(after) = self.own.take() {
            entries = self.read(count, &after, Duration::ZERO).await?;
            self.own = entries.last().map(|entry| entry.id.clone());
        }
        if entries.is_empty() && self.claims.tick().now_or_never().is_some() {
            entries = self.claim(count).await?;
        }
        if entries.is_empty() {
            entries = self.read(count, ">", bound.wait).await?;
        }
        let gone = entries.iter().filter(|entry| entry.fields.is_none());
        let gone: Vec<String> = gone.map(|entry| entry.id.clone()).collect();
        if !gone.is_empty() {
            // Deleted from the stream before they were confirmed: there is nothing to apply.
            self.confirm(&gone).await?;
        }
        entries.retain(|entry| self.in_hand.insert(entry.id.clone()));
        let stream = &self.group.stream;
        let messages = entries.into_iter().filter_map(|entry| entry.into_message(stream));
        let messages: Vec<_> = messages.collect();
        let bytes: usize = messages.iter().map(SourceMessage::bytes).sum();
        if bytes > bound.bytes {
            self.count = (self.count / 2).max(1);
        } else if messages.len() == count && bytes < bound.bytes / 4 {
            self.count = self.count.saturating_mul(2).min(bound.messages.max(FIRST_READ));
        }
        Ok(messages)
    }

    async fn read(
        &mut self,
        count: usize,
        after: &str,
        wait: Duration,
    ) -> Result<Vec<StreamEntry>, SessionLost> {
        let StreamGroup { stream, group, consumer, .. } = &*self.group;
        let mut command = cmd("XREADGROUP");
        command.arg("GROUP").arg(group).arg(consumer).arg("COUNT").arg(count);
        if !wait.is_zero() {
            command.arg("BLOCK").arg(millis(wait));
        }
        command.arg("STREAMS").arg(stream).arg(after);
        let streams = pairs(self.query(&command).await?);
        Ok(streams.into_iter().flat_map(|(_, entries)| stream_entries(entries)).collect())
    }

    async fn claim(&mut self, count: usize) -> Result<Vec<StreamEntry>, SessionLost> {
        let StreamGroup { stream, group, consumer, .. } = &*self.group;
        let mut command = cmd("XAUTOCLAIM");
        command.arg(stream).arg(group).arg(consumer).arg(millis(self.group.claim_after)).arg("0-0");
        command.arg("COUNT").arg(count);
        // The next cursor, the entries, and those that were deleted.
        let mut answer = items(self.query(&command).await?).into_iter();
        Ok(answer.nth(1).map(stream_entries).unwrap_or_default())
    }

    async fn confirm(&mut self, ids: &[String]) -> Result<(), SessionLost> {
        let mut command = cmd("XACK");
        command.arg(&self.group.stream).arg(&self.group.group).arg(ids);
        self.query(&command).await?;
        Ok(())
    }

    async fn settle_entries(
        &mut self,
        ends: &[(SourceMessage, MessageEnd)],
    ) -> Result<(), SessionLost> {
        let mut rejected = Pipeline::new();
        for (message, end) in ends {
            if let MessageEnd::Rejected(problem) = end {
                let command = rejected.cmd("XADD").arg(&self.group.rejected).arg("*");
                for (name, value) in message.rejected_headers(problem) {
                    command.arg(name).arg(value);
                }
                command.arg(PAYLOAD).arg(&message.body[..]);
            }
        }
        if !rejected.is_empty() {
            let added: Vec<Value> =
                rejected.query_async(&mut self.connection).await.map_err(lost)?;
            drop(added);
        }
        let ids: Vec<String> = ends.iter().map(|(message, _)| message.position.clone()).collect();
        self.confirm(&ids).await?;
        for id in &ids {
            self.in_hand.remove(id);
        }
        Ok(())
    }

    async fn hold_entries(&mut self, messages: &[SourceMessage]) -> Result<(), SessionLost> {
        let StreamGroup { stream, group, consumer, .. } = &*self.group;
        let mut command = cmd("XCLAIM");
        command.arg(stream).arg(group).arg(consumer).arg(0);
        for message in messages {
            command.arg(&message.position);
        }
        command.arg("JUSTID");
        self.query(&command).await?;
        Ok(())
    }
}

impl MessageSession for RedisSourceSession {
    fn take(&mut self, bound: TakeBound) -> DynFuture<'_, Result<Vec<SourceMessage>, SessionLost>> {
        Box::pin(self.take_entries(bound))
    }

    fn settle<'a>(
        &'a mut self,
        ends: &'a [(SourceMessage, MessageEnd)],
    ) -> DynFuture<'a, Result<(), SessionLost>> {
        Box::pin(self.settle_entries(ends))
    }

    fn hold<'a>(
        &'a mut self,
        messages: &'a [SourceMessage],
    ) -> DynFuture<'a, Result<(), SessionLost>> {
        Box::pin(self.hold_entries(messages))
    }

    fn close(mut self: Box<Self>) -> DynFuture<'static, ()> {
        Box::pin(async move {
            let leave = self.group.leave(&self.group.consumer);
            // A consumer that stays is deleted later, by another session.
            let _ = self.query(&leave).await;
        })
    }
}

/// An entry as Redis answers it.
struct StreamEntry {
    id: String,
    /// `None` if the entry was deleted.
    fields: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl StreamEntry {
    fn into_message(self, stream: &str) -> Option<SourceMessage> {
        let millis = self.id.split('-').next().and_then(|text| text.parse().ok());
        let mut message = SourceMessage {
            place: stream.to_owned(),
            sent_at: millis.map(Timestamp::from_millis),
            position: self.id,
            ..SourceMessage::default()
        };
        for (name, value) in self.fields? {
            match String::from_utf8_lossy(&name).into_owned() {
                name if name == PAYLOAD => message.body = value.into(),
                name => {
                    let value = String::from_utf8_lossy(&value).into_owned();
                    message.headers.push((name, value));
                }
            }
        }
        Some(message)
    }
}

fn stream_entries(value: Value) -> Vec<StreamEntry> {
    let entries = items(value).into_iter().filter_map(|entry| {
        let mut parts = items(entry).into_iter();
        let id = String::from_utf8(bytes(parts.next()?)).ok()?;
        let fields = match parts.next() {
            None | Some(Value::Nil) => None,
            Some(fields) => {
                let fields = pairs(fields).into_iter();
                Some(fields.map(|(name, value)| (bytes(name), bytes(value))).collect())
            }
        };
        Some(StreamEntry { id, fields })
    });
    entries.collect()
}

fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        _ => Vec::new(),
    }
}

/// Pairs, which RESP3 has as a map, and RESP2 as a list, either flat or of lists of two.
fn pairs(value: Value) -> Vec<(Value, Value)> {
    let Value::Map(pairs) = value else {
        let mut pairs = Vec::new();
        let mut rest = items(value).into_iter();
        while let Some(first) = rest.next() {
            match first {
                Value::Array(mut two) if two.len() == 2 => {
                    let second = two.pop().unwrap_or_default();
                    pairs.push((two.pop().unwrap_or_default(), second));
                }
                first => pairs.push((first, rest.next().unwrap_or_default())),
            }
        }
        return pairs;
    };
    pairs
}

fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        _ => Vec::new(),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn lost(error: RedisError) -> SessionLost {
    SessionLost(error.to_string())
}
