//! Brokers: connections to them, and what they say of one another.
//!
//! In: the addresses that were given. Out: a connection to a broker that answers, and for workers the addresses of all. Any broker serves
//! any call, so calls need one that is there; a topology is asked for when somebody begins to call, then every two seconds, and at once when a
//! call failed.
//! Invariant: a topology that cannot be had (an older broker, a token without the right) changes nothing: the given addresses are used.
//! Next door: which one is asked next (`places`).

pub(crate) mod address_list;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use punctual_proto::v1::tasks_client::TasksClient;
use punctual_proto::v1::workers_client::WorkersClient;
use serde::Deserialize;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;
use tonic::codegen::{Service as _, http};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Status, body::Body};

use crate::brokers::address_list::{AddressList, AfterFailure, BrokerAddress, LEARNED_MAX};
use crate::client::send_state::{SendState, TrackSend};
use crate::client::{AuthorizedChannel, Bearer, TasksStub};
use crate::clock;
use crate::error::{CallFailure, Error};

/// How long making one connection may take. A machine that is there answers in a round trip or two.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same where there are others to ask.
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(1);
/// How often a quiet connection is asked for a sign of life, and how long it may take to give one: a broker that
/// vanished without a word is noticed in twice this.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// What may be on the way to us unread: a few batches, so that a round trip is not a stop.
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// The largest answer: a page of a thousand tasks with payloads of 64 KiB.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How often the topology is asked for: what moved to a new broker has workers after so long.
const TOPOLOGY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a broker may take to answer, and the shortest pause between two looks.
const TOPOLOGY_TIMEOUT: Duration = Duration::from_secs(1);
const TOPOLOGY_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The largest topology: every broker with every partition, many times over.
const TOPOLOGY_BYTES_MAX: usize = 1024 * 1024;

/// How to speak to a broker, whichever it is.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    pub(crate) bearer: Bearer,
    /// Whom to trust instead of the public authorities.
    pub(crate) authority: Option<Vec<u8>>,
}

/// All brokers that are known.
pub(crate) struct Brokers {
    options: ConnectOptions,
    /// `http` or `https`, as the first given address has it: a topology has addresses without one.
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

impl std::fmt::Debug for Brokers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Brokers")
            .field("address_list", &self.known().address_list)
            .finish_non_exhaustive()
    }
}

impl Brokers {
    /// Of the given addresses, of which there is at least one. Nothing is sent before somebody wants a link, and nothing after
    /// the sender that comes with it is gone.
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

    /// A connection to a broker that answers, as far as anybody knows.
    pub(crate) fn channel(&self) -> (BrokerAddress, AuthorizedChannel) {
        self.start();
        let mut known = self.known();
        let address = Arc::clone(known.address_list.current());
        let channel = known.channel(&address);
        (address, InterceptedService::new(channel, self.options.bearer.clone()))
    }

    /// The same to ask about tasks, once.
    pub(crate) fn tasks(&self, send_state: &SendState) -> (BrokerAddress, TasksStub) {
        let (address, channel) = self.channel();
        let channel = TrackSend { channel, send_state: send_state.clone() };
        (address, TasksClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX))
    }

    /// A connection of its own, so that a stream of deliveries and the calls do not wait for one another.
    pub(crate) fn workers(&self, address: &BrokerAddress) -> WorkersClient<AuthorizedChannel> {
        self.start();
        let channel = self.known().endpoint(address).connect_lazy();
        WorkersClient::with_interceptor(channel, self.options.bearer.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// All addresses, whenever they change.
    pub(crate) fn watch(&self) -> watch::Receiver<Vec<BrokerAddress>> {
        self.all.subscribe()
    }

    /// Whether the caller gave this address.
    pub(crate) fn is_given(&self, address: &str) -> bool {
        self.known().address_list.is_given(address)
    }

    /// Whether there is one place to ask, and no other.
    pub(crate) fn is_alone(&self) -> bool {
        self.all.borrow().len() < 2
    }

    /// A broker answered.
    pub(crate) fn answered(&self, address: &BrokerAddress) {
        self.known().address_list.answered(address);
    }

    /// A broker failed so: whether to ask another at once.
    pub(crate) fn failed(&self, address: &BrokerAddress, status: &Status) -> AfterFailure {
        match CallFailure::of(status) {
            CallFailure::Refused => AfterFailure::AfterPause,
            // It has no room, and the others have the same store.
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
        // A sole broker that is away cannot be asked about others.
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

    /// Nothing is left half-way here by a panic.
    fn known(&self) -> MutexGuard<'_, KnownBrokers> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks whoever answers for the topology, and takes it in. One that is silent is not asked for anything else either.
    async fn refresh(&self) {
        let (address, mut channel) = self.channel();
        let asked = async {
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
        match timeout(TOPOLOGY_TIMEOUT, asked).await {
            Ok(Ok(Some(topology))) => self.learn(topology),
            // It is there, and does not say.
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
                        tracing::debug!(%address, %error, "the topology has no such address");
                        continue;
                    }
                }
            }
            addresses.push(address);
        }
        if known.address_list.learn(addresses) {
            let all = known.address_list.all();
            tracing::debug!(?all, "the topology has changed");
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
        endpoint.expect("there is at least the one that was given")
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

/// What is wanted of a topology; whatever else it says is for people.
#[derive(Debug, Deserialize)]
struct Topology {
    brokers: Vec<TopologyBroker>,
}

#[derive(Debug, Deserialize)]
struct TopologyBroker {
    address: String,
}

/// From the first call until the client is gone.
async fn refresh_topology(brokers: Arc<Brokers>, mut gone: oneshot::Receiver<()>) {
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
