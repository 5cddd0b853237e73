//! The client: where brokers are, who is asking, and how long a call may take.
//!
//! In: an address, or several. Out: [`Namespace`] handles, which share one connection for calls; each session of a worker has its own.
//! Invariant: nothing is connected before the first call; a broken connection is made again by itself, or another broker is asked.
//! Next door: what is asked of a namespace (`namespace`), how tasks are gathered (`batch`), which broker is asked (`brokers`).

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
use crate::brokers::{Brokers, ConnectOptions};
use crate::client::send_state::{SendState, TrackSend};
use crate::clock::Backoff;
use crate::error::CallFailure;
use crate::{Error, Namespace};

/// How long a call may take, all attempts to reach the broker included: longer than a restart of a broker.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

pub(crate) type AuthorizedChannel = InterceptedService<Channel, Bearer>;
pub(crate) type TasksStub = TasksClient<TrackSend<AuthorizedChannel>>;

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

/// Talks to a broker, or to all brokers of a cluster. Cheap to clone; all clones share one connection and one stream of batches.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<ClientState>,
}

#[derive(Debug)]
struct ClientState {
    brokers: Arc<Brokers>,
    calls: mpsc::Sender<ScheduleCall>,
    timeout: Duration,
    /// Tells, by being gone, that nobody calls any more.
    _alive: oneshot::Sender<()>,
}

impl Client {
    /// A client of the broker at this address (`http://127.0.0.1:7400`, or `https://…` for TLS).
    ///
    /// Nothing is sent yet: the connection is made by the first call, and again whenever it broke. The other brokers of its cluster are
    /// learned from it; to be able to begin while this one is away, give several ([`ClientBuilder::and`]).
    ///
    /// # Errors
    /// [`Error::Address`], or [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn connect(address: impl Into<String>) -> Result<Self, Error> {
        Self::builder(address).connect()
    }

    /// The same with further addresses, a token, a certificate authority or another timeout.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            addresses: vec![address.into()],
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

    pub(crate) fn calls(&self) -> &mpsc::Sender<ScheduleCall> {
        &self.shared.calls
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    pub(crate) fn brokers(&self) -> &Arc<Brokers> {
        &self.shared.brokers
    }

    /// Calls until there is an answer, the broker refuses, the time is up, or asking again is not safe. While one broker is away the
    /// next is asked at once.
    pub(crate) async fn call<T, F>(
        &self,
        retry_when: RetryWhen,
        call: impl Fn(TasksStub) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        // What is true if the time is up: how the last attempt failed, whether an earlier one may have been done, and whether
        // the one under way has left.
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
                    // This one was not done, wherever it came to.
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
            Err(last.unwrap_or_else(|| Error::Unreachable("no connection in time".to_owned())))
        })
    }
}

/// When a call that got no answer may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryWhen {
    /// Twice is as good as once.
    Always,
    /// Only if the broker has not maybe_done it.
    IfNotSeen,
}

/// How to reach a broker.
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    addresses: Vec<String>,
    token: Option<String>,
    authority: Option<Vec<u8>>,
    timeout: Duration,
}

impl fmt::Debug for ClientBuilder {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Another broker of the same cluster, to be asked when the ones before are away.
    pub fn and(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Further brokers of the same cluster.
    pub fn and_all<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.addresses.extend(addresses.into_iter().map(Into::into));
        self
    }

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
        let bearer = Bearer(self.token.as_deref().map(bearer).transpose()?);
        let options = ConnectOptions { bearer, authority: self.authority };
        let (brokers, _alive) = Brokers::new(self.addresses, options)?;
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
