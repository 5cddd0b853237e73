//! The client: addresses of brokers, token and timeout.
//!
//! All [`Namespace`] handles of a client share one connection for calls; each session of a worker
//! has its own. Nothing is connected before the first call. If a connection breaks, the client
//! makes it again or calls another broker. The calls are in `namespace`, those of no namespace in
//! `client/reads.rs`; `client/unary.rs` repeats them where that is safe.

pub(crate) mod json;
pub(crate) mod reads;
pub(crate) mod state;
pub(crate) mod unary;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::brokers::ConnectOptions;
use crate::brokers::channel::Bearer;
use crate::client::state::ClientState;
use crate::{Error, Namespace};

/// How long a call may take, with all attempts: longer than the restart of a broker.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// A client of a broker or of a cluster. Cheap to clone; all clones share one connection and one
/// stream of batches.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) state: Arc<ClientState>,
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
        Namespace::new(Arc::clone(&self.state), Arc::from(name.as_ref()))
    }
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
        let bearer = Bearer::new(self.token.as_deref())?;
        let options = ConnectOptions { bearer, authority: self.authority };
        let state = ClientState::new(self.addresses, options, self.timeout)?;
        Ok(Client { state: Arc::new(state) })
    }
}
