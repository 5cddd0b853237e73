//! Redis Streams: entries, confirmed by the answer of XADD.
//!
//! The fields of an entry are the headers, and the field `payload` is the body. A batch is one
//! pipeline, so the server gets all of it before its first answer is read. A session goes to the
//! first of the configured servers that accepts writes. Redis Cluster is not supported.

use std::time::Duration;

use punctual_core::{AttemptResult, ConnectionName};
use punctual_engine::Delivery;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, IntoConnectionInfo as _,
    Pipeline, RedisConnectionInfo, RedisError, ServerErrorKind, TlsCertificates, Value,
};
use tokio::time::timeout;

use crate::connection::{MessageFormat, MessageLink};
use crate::connection_settings::CONNECT_TIMEOUT;
use crate::message::SinkMessage;
use crate::sink::{DynFuture, SendResult, SessionLost, Sink, SinkSession, confirmed, failed};
use crate::window::BatchWindow;

/// The field of an entry that has the body.
const PAYLOAD: &str = "payload";
/// How long the server may take to show that it is there.
const CHECK_MAX: Duration = Duration::from_secs(5);
/// The role of a server that accepts writes, as `ROLE` returns it.
const ROLE_OF_WRITES: &[u8] = b"master"; // words: allow
/// Errors after which another server, or the same one later, may accept writes: the session ends.
const NOT_WRITABLE: [&str; 6] =
    ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOAUTH", "NOREPLICAS"];

/// The sink of a connection.
pub(crate) fn sink(_: &ConnectionName, link: &MessageLink, answer_bytes: usize) -> Box<dyn Sink> {
    Box::new(RedisStreamSink { link: link.clone(), answer_bytes })
}

#[derive(Debug)]
struct RedisStreamSink {
    link: MessageLink,
    /// Bytes of each answer that are kept.
    answer_bytes: usize,
}

impl Sink for RedisStreamSink {
    fn connect(&self) -> DynFuture<'_, Result<Box<dyn SinkSession>, String>> {
        Box::pin(async {
            let connection = timeout(CONNECT_TIMEOUT, self.connect_to_any()).await;
            let silent = || format!("no answer within {} ms", CONNECT_TIMEOUT.as_millis());
            let connection = connection.map_err(|_| silent())??;
            let (format, answer_bytes) = (self.link.format, self.answer_bytes);
            let session: Box<dyn SinkSession> =
                Box::new(RedisStreamSession { connection, format, answer_bytes });
            Ok(session)
        })
    }
}

impl RedisStreamSink {
    /// Connects to the first server that accepts writes. Servers share the time for connecting.
    async fn connect_to_any(&self) -> Result<MultiplexedConnection, String> {
        let clients = self.clients()?;
        let each = CONNECT_TIMEOUT / u32::try_from(clients.len().max(1)).unwrap_or(u32::MAX);
        let mut problem = "no server is configured".to_owned();
        for client in clients {
            match timeout(each, connect_to(&client)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => problem = error,
                Err(_) => problem = format!("no answer within {} ms", each.as_millis()),
            }
        }
        Err(problem)
    }

    fn clients(&self) -> Result<Vec<Client>, String> {
        let endpoint = &self.link.endpoint;
        let mut settings = RedisConnectionInfo::default();
        if let Some(database) = &endpoint.path {
            let number = database.parse().map_err(|_| format!("{database:?} is not a database"));
            settings = settings.set_db(number?);
        }
        if let Some(user) = &endpoint.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &endpoint.password {
            settings = settings.set_password(password.reveal());
        }
        let client = |host: &str, port: u16| {
            let tls = endpoint.tls.as_ref();
            let host = host.to_owned();
            let address = match tls {
                None => ConnectionAddr::Tcp(host, port),
                Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            };
            let info = address.into_connection_info()?.set_redis_settings(settings.clone());
            match tls {
                None => Client::open(info),
                Some(tls) => {
                    // Ignored: another call may have installed the same provider.
                    let _ = rustls::crypto::ring::default_provider().install_default();
                    let client = tls.client_pem.clone();
                    let client_tls = client.map(|(client_cert, client_key)| ClientTlsConfig {
                        client_cert,
                        client_key,
                    });
                    let root_cert = tls.authority_pem.clone();
                    Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
                }
            }
        };
        let clients = endpoint.hosts.iter().map(|host| client(&host.host, host.port));
        clients.collect::<Result<_, _>>().map_err(|error: RedisError| error.to_string())
    }
}

/// Connects to a server, and checks that it accepts writes.
async fn connect_to(client: &Client) -> Result<MultiplexedConnection, String> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut connection = connected.map_err(|error| error.to_string())?;
    match connection.send_packed_command(&redis::cmd("ROLE")).await {
        Ok(Value::Array(role)) => match role.first() {
            Some(Value::BulkString(role)) if role != ROLE_OF_WRITES => {
                Err("the server is a replica".to_owned())
            }
            _ => Ok(connection),
        },
        // A user may be allowed to write and not to ask.
        Ok(_) => Ok(connection),
        Err(error) if error.kind() == ServerErrorKind::NoPerm.into() => Ok(connection),
        Err(error) => Err(error.to_string()),
    }
}

struct RedisStreamSession {
    connection: MultiplexedConnection,
    format: MessageFormat,
    answer_bytes: usize,
}

impl SinkSession for RedisStreamSession {
    fn send<'a>(&'a mut self, batch: &'a [Delivery]) -> DynFuture<'a, SendResult> {
        Box::pin(async move {
            let mut window = BatchWindow::new(batch);
            let (mut pipeline, mut sent) = (Pipeline::with_capacity(batch.len()), Vec::new());
            for (at, delivery) in batch.iter().enumerate() {
                match entry(delivery, self.format) {
                    Ok(command) => {
                        pipeline.add_command(command);
                        sent.push(at);
                    }
                    Err(result) => window.set(at, result),
                }
            }
            if sent.is_empty() {
                return window.end(None);
            }
            let answers = self.connection.send_packed_commands(&pipeline, 0, sent.len());
            let answers = match BatchWindow::within(batch, answers).await {
                Some(Ok(answers)) => answers,
                Some(Err(error)) => return window.end(Some(SessionLost(error.to_string()))),
                // Answers come in order, so nothing that follows would be understood.
                None => {
                    let silent = "no answer in time".to_owned();
                    return window.end(Some(SessionLost(silent)));
                }
            };
            let mut lost = None;
            for (at, answer) in sent.into_iter().zip(answers) {
                let (result, is_lost) = self.result(answer);
                window.set(at, result);
                lost = lost.or(is_lost);
            }
            window.end(lost)
        })
    }

    fn check(&mut self) -> DynFuture<'_, Result<(), SessionLost>> {
        Box::pin(async {
            let ping = redis::cmd("PING");
            let pong = self.connection.send_packed_command(&ping);
            match timeout(CHECK_MAX, pong).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(SessionLost(error.to_string())),
                Err(_) => {
                    let silent = format!("no answer within {} ms", CHECK_MAX.as_millis());
                    Err(SessionLost(silent))
                }
            }
        })
    }
}

impl RedisStreamSession {
    /// What an answer means for its delivery, and for the session.
    fn result(&self, answer: Value) -> (AttemptResult, Option<SessionLost>) {
        let error = match answer {
            Value::BulkString(id) => {
                let id = String::from_utf8_lossy(&id);
                return (confirmed(&format!("entry {id}"), self.answer_bytes), None);
            }
            Value::SimpleString(id) => {
                return (confirmed(&format!("entry {id}"), self.answer_bytes), None);
            }
            Value::ServerError(error) => error,
            // Nothing was added.
            Value::Nil => return (failed("the server has not added the entry"), None),
            other => return (failed(&format!("unexpected answer: {other:?}")), None),
        };
        let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
        let text = match error.code() {
            "MOVED" | "ASK" | "CROSSSLOT" => format!("Redis Cluster is not supported: {text}"),
            _ => text,
        };
        let lost = NOT_WRITABLE.contains(&error.code()).then(|| SessionLost(text.clone()));
        (failed(&text), lost)
    }
}

/// The command that adds a delivery to its stream.
fn entry(delivery: &Delivery, format: MessageFormat) -> Result<Cmd, AttemptResult> {
    let message = SinkMessage::of(delivery, format)?;
    let mut command = redis::cmd("XADD");
    command.arg(message.address.place());
    if let Some(length) = message.address.options().stream_length {
        command.arg("MAXLEN").arg("~").arg(length);
    }
    command.arg("*");
    let body = message.body.clone();
    for (name, value) in message.headers_with_content_type() {
        command.arg(&*name).arg(&*value);
    }
    command.arg(PAYLOAD).arg(&*body);
    Ok(command)
}

#[cfg(test)]
mod tests;
