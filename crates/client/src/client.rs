//! The client: addresses of brokers, token, timeout, and calls that are repeated where that is
//! safe.
//!
//! All [`Namespace`] handles of a client share one connection for calls; each session of a worker
//! has its own. Nothing is connected before the first call. If a connection breaks, the client
//! makes it again or calls another broker. The calls themselves are in `namespace`; `batch` sends
//! tasks in batches, and `brokers` chooses the broker.

pub(crate) mod send_state;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use punctual_proto::v1::tasks_client::TasksClient;
use tokio::sync::{mpsc, oneshot};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::batch::{self, ScheduleCall};
use crate::brokers::address_list::AfterFailure;
use crate::brokers::{BrokerConnections, ConnectOptions};
use crate::client::send_state::{SendState, TrackSend};
use crate::clock::Backoff;
use crate::error::CallFailure;
use crate::{Error, Namespace};

/// How long a call may take, with all attempts: longer than the restart of a broker.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

pub(crate) type AuthorizedChannel = InterceptedService<Channel, Bearer>;
pub(crate) type TasksStub = TasksClient<TrackSend<AuthorizedChannel>>;

/// Adds the token to every call.
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

/// A client of a broker or of a cluster. Cheap to clone; all clones share one connection and one
/// stream of batches.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<ClientState>,
}

#[derive(Debug)]
struct ClientState {
    brokers: Arc<BrokerConnections>,
    calls: mpsc::Sender<ScheduleCall>,
    timeout: Duration,
    /// When it is dropped, the client stops to refresh the topology.
    _alive: oneshot::Sender<()>,
}

impl Client {
    /// Makes a client of the broker at this address (`http://127.0.0.1:7400`, or `https://…` for
    /// TLS).
    ///
    /// Nothing is sent yet: the first call connects. The client learns the other brokers of a
    /// cluster from this one. Give further addresses ([`ClientBuilder::and`]) to be able to start
    /// while this broker is down.
    ///
    /// # Errors
    /// [`Error::Address`], or [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn connect(address: impl Into<String>) -> Result<Self, Error> {
        Self::builder(address).connect()
    }

    /// Makes a client with further addresses, a token, a certificate authority or another timeout.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            addresses: vec![address.into()],
            token: None,
            authority: None,
            timeout: TIMEOUT_DEFAULT,
        }
    }

    /// The tasks and workers of a namespace. Whether the namespace exists is checked by the broker
    /// with the first call.
    #[must_use]
    pub fn namespace(&self, name: impl AsRef<str>) -> Namespace {
        Namespace::new(self.clone(), Arc::from(name.as_ref()))
    }

    pub(crate) fn calls(&self) -> &mpsc::Sender<ScheduleCall> {
        &self.shared.calls
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    pub(crate) fn brokers(&self) -> &Arc<BrokerConnections> {
        &self.shared.brokers
    }

    /// Calls until a broker answers or refuses, the timeout is over, or it is not safe to repeat
    /// the call. If a broker is down, the next one is called at once.
    pub(crate) async fn call<T, F>(
        &self,
        retry_when: RetryWhen,
        call: impl Fn(TasksStub) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        // For the timeout: how the last attempt failed, whether a broker may have carried out an
        // earlier one, and whether the current one was sent.
        let mut last = None;
        let mut maybe_done = false;
        let mut send_state = SendState::default();
        let answered = tokio::time::timeout(self.shared.timeout, async {
            let mut backoff = Backoff::new();
            loop {
                send_state = SendState::default();
                let (address, tasks) = self.shared.brokers.tasks(&send_state);
                let status = match call(tasks).await {
                    Ok(answer) => {
                        self.shared.brokers.answered(&address);
                        return Ok(answer.into_inner());
                    }
                    Err(status) => status,
                };
                let next = self.shared.brokers.failed(&address, &status);
                match (CallFailure::of(&status), retry_when) {
                    (CallFailure::Refused, _) | (CallFailure::Lost, RetryWhen::IfNotSeen) => {
                        return Err(Error::from_status(&status));
                    }
                    (CallFailure::Lost, RetryWhen::Always) => maybe_done = true,
                    // No broker has carried out this one.
                    (CallFailure::Unreachable | CallFailure::Busy, _) => {
                        send_state = SendState::default()
                    }
                }
                last = Some(Error::from_status(&status));
                if next == AfterFailure::AfterPause {
                    backoff.wait().await;
                }
            }
        });
        answered.await.unwrap_or_else(|_| {
            if maybe_done || !send_state.abort() {
                return Err(Error::TimedOut);
            }
            Err(last.unwrap_or_else(|| {
                Error::Unreachable("no connection within the timeout".to_owned())
            }))
        })
    }
}

/// When a call without an answer may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryWhen {
    /// Always: calling twice has the same effect as calling once.
    Always,
    /// Only if no broker has carried it out.
    IfNotSeen,
}

/// Options of a client.
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    addresses: Vec<String>,
    token: Option<String>,
    authority: Option<Vec<u8>>,
    timeout: Duration,
}

impl fmt::Debug for ClientBuilder {
    /// Leaves out the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Adds a broker of the same cluster, which is called if the ones before are down.
    pub fn and(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Adds brokers of the same cluster.
    pub fn and_all<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.addresses.extend(addresses.into_iter().map(Into::into));
        self
    }

    /// Sends a bearer token with every call.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Trusts this certificate authority (PEM) instead of the public ones.
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// How long a call may take, with all attempts. The default is ten seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the client. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Token`], or [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn connect(self) -> Result<Client, Error> {
        tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let bearer = Bearer(self.token.as_deref().map(bearer).transpose()?);
        let options = ConnectOptions { bearer, authority: self.authority };
        let (brokers, _alive) = BrokerConnections::new(self.addresses, options)?;
        let calls = batch::spawn(Arc::clone(&brokers), self.timeout / 2);
        let timeout = self.timeout;
        Ok(Client { shared: Arc::new(ClientState { brokers, calls, timeout, _alive }) })
    }
}

fn bearer(token: &str) -> Result<MetadataValue<Ascii>, Error> {
    let mut value: MetadataValue<Ascii> =
        format!("Bearer {token}").parse().map_err(|_| Error::Token)?;
    value.set_sensitive(true);
    Ok(value)
}
