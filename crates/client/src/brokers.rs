//! Connections to brokers, and the topology of the cluster.
//!
//! Every broker serves every call, so calls use one broker that answers; workers connect to all.
//! The client requests the topology with the first call, then every two seconds, and at once after
//! a failure. If there is none (an older broker, or a token without the right), the client uses the
//! addresses that the caller gave.
//!
//! `address_list` chooses the next address, `channel` adds the token to calls, and `send_state`
//! tracks whether a request was sent.

pub(crate) mod address_list;
pub(crate) mod channel;
pub(crate) mod send_state;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use punctual_proto::v1::workers_client::WorkersClient;
use serde::Deserialize;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;
use tonic::codegen::{Service as _, http};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Status, body::Body};

use crate::brokers::address_list::{AddressList, AfterFailure, BrokerAddress, LEARNED_MAX};
use crate::brokers::channel::{AuthorizedChannel, Bearer, TrackedChannel};
use crate::brokers::send_state::{SendState, TrackSend};
use crate::clock;
use crate::error::{CallFailure, Error};

/// How long it may take to connect. A machine that is up answers within a round trip or two.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take to connect if there are other brokers.
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(1);
/// The interval and the timeout of HTTP/2 pings on an idle connection. A broker that vanished is
/// noticed within twice this time.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The HTTP/2 window: a few batches, so that the sender does not wait for a round trip.
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// The largest answer, a page of a thousand tasks with payloads of 64 KiB.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How often the topology is requested. Workers connect to a new broker after this time.
const TOPOLOGY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a broker may take to answer.
const TOPOLOGY_TIMEOUT: Duration = Duration::from_secs(1);
/// The shortest pause between two requests.
const TOPOLOGY_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The largest topology, much more than all brokers and all partitions need.
const TOPOLOGY_BYTES_MAX: usize = 1024 * 1024;

/// The options of every connection.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    pub(crate) bearer: Bearer,
    /// The certificate authority (PEM) to trust instead of the public ones.
    pub(crate) authority: Option<Vec<u8>>,
}

/// All known brokers.
pub(crate) struct BrokerConnections {
    options: ConnectOptions,
    /// `http` or `https`, from the first address. A topology has addresses without a scheme.
    scheme: String,
    known: Mutex<KnownBrokers>,
    /// All addresses, for workers.
    all: watch::Sender<Vec<BrokerAddress>>,
    started: AtomicBool,
    refresh: Notify,
}

struct KnownBrokers {
    address_list: AddressList,
    endpoints: HashMap<BrokerAddress, Endpoint>,
    channels: HashMap<BrokerAddress, Channel>,
}

impl std::fmt::Debug for BrokerConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokerConnections")
            .field("address_list", &self.known().address_list)
            .finish_non_exhaustive()
    }
}

impl BrokerConnections {
    /// Makes a list of at least one address. Nothing is sent before the first call. The topology is
    /// refreshed until the returned sender is dropped.
    pub(crate) fn new(
        given: Vec<String>,
        options: ConnectOptions,
    ) -> Result<(Arc<Self>, oneshot::Sender<()>), Error> {
        let bound = connect_timeout(given.len());
        let mut endpoints = HashMap::new();
        let mut addresses = Vec::new();
        for address in given {
            let endpoint = endpoint(&address, &options, bound).map_err(|source| {
                Error::Address { address: address.clone(), source: Arc::new(source) }
            })?;
            let address: BrokerAddress = Arc::from(address);
            endpoints.insert(Arc::clone(&address), endpoint);
            addresses.push(address);
        }
        let first = addresses.first().cloned().unwrap_or_else(|| Arc::from(""));
        let scheme = endpoints.get(&first).and_then(|endpoint| endpoint.uri().scheme_str());
        let scheme = scheme.unwrap_or("http").to_owned();
        let address_list = AddressList::new(first, addresses);
        let all = watch::Sender::new(address_list.all());
        let known = Mutex::new(KnownBrokers { address_list, endpoints, channels: HashMap::new() });
        let (started, refresh) = (AtomicBool::new(false), Notify::new());
        let brokers = Arc::new(Self { options, scheme, known, all, started, refresh });
        let (living, gone) = oneshot::channel();
        tokio::spawn(refresh_topology(Arc::clone(&brokers), gone));
        Ok((brokers, living))
    }

    /// A channel to the broker in use.
    pub(crate) fn channel(&self) -> (BrokerAddress, AuthorizedChannel) {
        self.start();
        let mut known = self.known();
        let address = Arc::clone(known.address_list.current());
        let channel = known.channel(&address);
        (address, InterceptedService::new(channel, self.options.bearer.clone()))
    }

    /// A channel for one call, which records in `send_state` whether it was sent.
    pub(crate) fn tracked(&self, send_state: &SendState) -> (BrokerAddress, TrackedChannel) {
        let (address, channel) = self.channel();
        (address, TrackSend { channel, send_state: send_state.clone() })
    }

    /// A stub with a connection of its own, so that deliveries and calls do not delay each other.
    pub(crate) fn workers(&self, address: &BrokerAddress) -> WorkersClient<AuthorizedChannel> {
        self.start();
        let channel = self.known().endpoint(address).connect_lazy();
        WorkersClient::with_interceptor(channel, self.options.bearer.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Watches all addresses.
    pub(crate) fn watch(&self) -> watch::Receiver<Vec<BrokerAddress>> {
        self.all.subscribe()
    }

    /// Whether the caller gave this address.
    pub(crate) fn is_given(&self, address: &str) -> bool {
        self.known().address_list.is_given(address)
    }

    /// Whether there is only one address.
    pub(crate) fn is_alone(&self) -> bool {
        self.all.borrow().len() < 2
    }

    /// Records that a broker has answered.
    pub(crate) fn answered(&self, address: &BrokerAddress) {
        self.known().address_list.answered(address);
    }

    /// Records that a call failed, and returns when to call again.
    pub(crate) fn failed(&self, address: &BrokerAddress, status: &Status) -> AfterFailure {
        match CallFailure::of(status) {
            CallFailure::Refused => AfterFailure::AfterPause,
            // Its quota or its store is full, and all brokers share them.
            CallFailure::Busy if status.code() != tonic::Code::Unavailable => {
                AfterFailure::AfterPause
            }
            CallFailure::Unreachable | CallFailure::Lost | CallFailure::Busy => {
                self.is_away(address)
            }
        }
    }

    fn is_away(&self, address: &BrokerAddress) -> AfterFailure {
        let next = self.known().address_list.failed(address, clock::now());
        // A single broker that is down cannot name others.
        if !self.is_alone() {
            self.refresh.notify_one();
        }
        next
    }

    fn start(&self) {
        if !self.started.swap(true, Ordering::Relaxed) {
            self.refresh.notify_one();
        }
    }

    /// A panic of another thread leaves it consistent, so poisoning is ignored.
    fn known(&self) -> MutexGuard<'_, KnownBrokers> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests the topology and learns its addresses. A broker that does not answer counts as
    /// failed, also for other calls.
    async fn refresh(&self) {
        let (address, mut channel) = self.channel();
        let response = async {
            let request = http::Request::get("/v1/topology").body(Body::empty());
            let request = request.map_err(|error| Status::internal(error.to_string()))?;
            std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(status)?;
            let answer = channel.call(request).await.map_err(status)?;
            if !answer.status().is_success() {
                return Ok(None);
            }
            let body = Limited::new(answer.into_body(), TOPOLOGY_BYTES_MAX).collect().await;
            Ok(body.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok()))
        };
        match timeout(TOPOLOGY_TIMEOUT, response).await {
            Ok(Ok(Some(topology))) => self.learn(topology),
            // The broker answers, but without a topology.
            Ok(Ok(None)) => {}
            Ok(Err(status)) => {
                self.failed(&address, &status);
            }
            Err(_) => {
                self.is_away(&address);
            }
        }
    }

    fn learn(&self, topology: Topology) {
        let mut known = self.known();
        let mut addresses = Vec::new();
        for broker in topology.brokers.into_iter().take(LEARNED_MAX) {
            let address: BrokerAddress = Arc::from(format!("{}://{}", self.scheme, broker.address));
            if !known.endpoints.contains_key(&address) {
                match endpoint(&address, &self.options, CONNECT_TIMEOUT_OF_SEVERAL) {
                    Ok(endpoint) => _ = known.endpoints.insert(Arc::clone(&address), endpoint),
                    Err(error) => {
                        tracing::debug!(%address, %error, "ignored invalid topology address");
                        continue;
                    }
                }
            }
            addresses.push(address);
        }
        if known.address_list.learn(addresses) {
            let all = known.address_list.all();
            tracing::debug!(?all, "topology changed");
            let KnownBrokers { endpoints, channels, .. } = &mut *known;
            endpoints.retain(|address, _| all.contains(address));
            channels.retain(|address, _| all.contains(address));
            self.all.send_replace(all);
        }
    }
}

impl KnownBrokers {
    fn endpoint(&self, address: &BrokerAddress) -> Endpoint {
        let first = || self.endpoints.values().next().cloned();
        let endpoint = self.endpoints.get(address).cloned().or_else(first);
        endpoint.expect("the addresses of the caller are never removed")
    }

    fn channel(&mut self, address: &BrokerAddress) -> Channel {
        if let Some(channel) = self.channels.get(address) {
            return channel.clone();
        }
        let channel = self.endpoint(address).connect_lazy();
        self.channels.insert(Arc::clone(address), channel.clone());
        channel
    }
}

/// The part of a topology that the client needs.
#[derive(Debug, Deserialize)]
struct Topology {
    brokers: Vec<TopologyBroker>,
}

#[derive(Debug, Deserialize)]
struct TopologyBroker {
    address: String,
}

/// Refreshes the topology from the first call until the client is dropped.
async fn refresh_topology(brokers: Arc<BrokerConnections>, mut gone: oneshot::Receiver<()>) {
    let looking = async {
        brokers.refresh.notified().await;
        loop {
            brokers.refresh().await;
            clock::after(TOPOLOGY_PAUSE_MIN).await;
            _ = timeout(TOPOLOGY_INTERVAL, brokers.refresh.notified()).await;
        }
    };
    tokio::select! {
        () = looking => {}
        _ = &mut gone => {}
    }
}

fn status(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Status {
    Status::from_error(error.into())
}

fn connect_timeout(addresses: usize) -> Duration {
    if addresses > 1 { CONNECT_TIMEOUT_OF_SEVERAL } else { CONNECT_TIMEOUT }
}

fn endpoint(
    address: &str,
    options: &ConnectOptions,
    connect_timeout: Duration,
) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(address.to_owned())?
        .connect_timeout(connect_timeout)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    if endpoint.uri().scheme_str() != Some("https") {
        return Ok(endpoint);
    }
    let tls = ClientTlsConfig::new();
    endpoint.tls_config(match &options.authority {
        Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
        None => tls.with_webpki_roots(),
    })
}
