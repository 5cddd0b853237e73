//! The client: where the broker is, who is asking, and how long a call may take.
//!
//! In: an address. Out: [`Namespace`] handles, which share one connection for calls; each worker has its own.
//! Invariant: nothing is connected before the first call, and a broken connection is made again by itself.
//! Next door: what is asked of a namespace (`namespace`), how tasks are gathered (`batch`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use punctual_proto::v1::tasks_client::TasksClient;
use punctual_proto::v1::workers_client::WorkersClient;
use tokio::sync::mpsc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Response, Status};

use crate::batch::{self, Ask};
use crate::clock::Backoff;
use crate::error::Failing;
use crate::{Error, Namespace};

/// How long a call may take, all attempts to reach the broker included: longer than a restart of a broker.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// How long making one connection may take. A machine that is there answers in a round trip or two.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a quiet connection is asked for a sign of life, and how long it may take to give one: a broker that
/// vanished without a word is noticed in twice this.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// What may be on the way to us unread: a few batches, so that a round trip is not a stop.
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// The largest answer: a page of a thousand tasks with payloads of 64 KiB.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

pub(crate) type Link = InterceptedService<Channel, Bearer>;
pub(crate) type Tasks = TasksClient<Link>;

/// Says who is asking, with every call.
#[derive(Debug, Clone)]
pub(crate) struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Talks to a broker. Cheap to clone; all clones share one connection and one stream of batches.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    bearer: Bearer,
    tasks: Tasks,
    asks: mpsc::Sender<Ask>,
    timeout: Duration,
}

impl Client {
    /// A client of the broker at this address (`http://127.0.0.1:7400`, or `https://…` for TLS).
    ///
    /// Nothing is sent yet: the connection is made by the first call, and again whenever it broke.
    ///
    /// # Errors
    /// [`Error::Address`], or [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn connect(address: impl Into<String>) -> Result<Self, Error> {
        Self::builder(address).connect()
    }

    /// The same with a token, a certificate authority or another timeout.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            address: address.into(),
            token: None,
            authority: None,
            timeout: TIMEOUT_DEFAULT,
        }
    }

    /// The tasks and workers of one namespace. The broker says whether there is such a one.
    #[must_use]
    pub fn namespace(&self, name: impl AsRef<str>) -> Namespace {
        Namespace::new(self.clone(), Arc::from(name.as_ref()))
    }

    pub(crate) fn asks(&self) -> &mpsc::Sender<Ask> {
        &self.shared.asks
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// A connection of its own, so that a stream of deliveries and the calls do not wait for one another.
    pub(crate) fn workers(&self) -> WorkersClient<Link> {
        let channel = self.shared.endpoint.connect_lazy();
        WorkersClient::with_interceptor(channel, self.shared.bearer.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Calls until there is an answer, the broker refuses, the time is up, or asking again is not safe.
    pub(crate) async fn call<T, F>(
        &self,
        again: Again,
        call: impl Fn(Tasks) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut last = Error::TimedOut;
        let answered = tokio::time::timeout(self.shared.timeout, async {
            let mut backoff = Backoff::new();
            loop {
                let status = match call(self.shared.tasks.clone()).await {
                    Ok(answer) => return Ok(answer.into_inner()),
                    Err(status) => status,
                };
                match (Failing::of(&status), again) {
                    (Failing::Refused, _) | (Failing::Lost, Again::IfNotSeen) => {
                        return Err(Error::from_status(&status));
                    }
                    (Failing::Unreachable | Failing::Busy, _) | (Failing::Lost, Again::Always) => {
                        last = Error::from_status(&status);
                    }
                }
                backoff.wait().await;
                // From here on the broker may be thinking about it: what failed before says nothing of that.
                last = Error::TimedOut;
            }
        });
        answered.await.unwrap_or_else(|_| Err(last))
    }
}

/// When a call that got no answer may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// Twice is as good as once.
    Always,
    /// Only if the broker has not seen it.
    IfNotSeen,
}

/// How to reach a broker.
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    address: String,
    token: Option<String>,
    authority: Option<Vec<u8>>,
    timeout: Duration,
}

impl fmt::Debug for ClientBuilder {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("address", &self.address).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Sent as a bearer token with every call.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Trusts this certificate authority (PEM) instead of the public ones.
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// How long a call may take, all attempts to reach the broker included. Ten seconds unless said.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The client. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Token`], or [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn connect(self) -> Result<Client, Error> {
        tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let endpoint = self.endpoint().map_err(|source| Error::Address {
            address: self.address.clone(),
            source: Arc::new(source),
        })?;
        let bearer = Bearer(self.token.as_deref().map(bearer).transpose()?);
        let channel = endpoint.connect_lazy();
        let tasks = TasksClient::with_interceptor(channel.clone(), bearer.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX);
        let link = InterceptedService::new(channel, bearer.clone());
        let grpc = tonic::client::Grpc::new(link).max_decoding_message_size(ANSWER_BYTES_MAX);
        let asks = batch::spawn(grpc, self.timeout / 2);
        let timeout = self.timeout;
        Ok(Client { shared: Arc::new(Shared { endpoint, bearer, tasks, asks, timeout }) })
    }

    fn endpoint(&self) -> Result<Endpoint, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(self.address.clone())?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES);
        if endpoint.uri().scheme_str() != Some("https") {
            return Ok(endpoint);
        }
        let tls = ClientTlsConfig::new();
        endpoint.tls_config(match &self.authority {
            Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
            None => tls.with_webpki_roots(),
        })
    }
}

fn bearer(token: &str) -> Result<MetadataValue<Ascii>, Error> {
    let mut value: MetadataValue<Ascii> =
        format!("Bearer {token}").parse().map_err(|_| Error::Token)?;
    value.set_sensitive(true);
    Ok(value)
}
