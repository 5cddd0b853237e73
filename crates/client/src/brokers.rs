//! Brokers: connections to them, and what they say of one another.
//!
//! In: the addresses that were given. Out: a connection to a broker that answers, and for workers the addresses of all. Any broker serves
//! any call, so calls need one that is there; a topology is asked for when somebody begins to call, then every two seconds, and at once when a
//! call failed.
//! Invariant: a topology that cannot be had (an older broker, a token without the right) changes nothing: the given addresses are used.
//! Next door: which one is asked next (`places`).

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

use crate::client::{Bearer, Link, Tasks};
use crate::clock;
use crate::departure::{Departure, Noting};
use crate::error::{Error, Failing};
use crate::places::{Address, LEARNED_MAX, Next, Places};

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
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a broker may take to answer, and the shortest pause between two looks.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// The largest topology: every broker with every partition, many times over.
const TOPOLOGY_BYTES_MAX: usize = 1024 * 1024;

/// How to speak to a broker, whichever it is.
#[derive(Clone)]
pub(crate) struct Manner {
    pub(crate) bearer: Bearer,
    /// Whom to trust instead of the public authorities.
    pub(crate) authority: Option<Vec<u8>>,
}

/// All brokers that are known.
pub(crate) struct Brokers {
    manner: Manner,
    /// `http` or `https`, as the first given address has it: a topology has addresses without one.
    scheme: String,
    known: Mutex<Known>,
    /// All addresses, for workers.
    all: watch::Sender<Vec<Address>>,
    begun: AtomicBool,
    look: Notify,
}

struct Known {
    places: Places,
    endpoints: HashMap<Address, Endpoint>,
    channels: HashMap<Address, Channel>,
}

impl std::fmt::Debug for Brokers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Brokers").field("places", &self.known().places).finish_non_exhaustive()
    }
}

impl Brokers {
    /// Of the given addresses, of which there is at least one. Nothing is sent before somebody wants a link, and nothing after
    /// the sender that comes with it is gone.
    pub(crate) fn new(
        given: Vec<String>,
        manner: Manner,
    ) -> Result<(Arc<Self>, oneshot::Sender<()>), Error> {
        let bound = connect_timeout(given.len());
        let mut endpoints = HashMap::new();
        let mut addresses = Vec::new();
        for address in given {
            let endpoint = endpoint(&address, &manner, bound).map_err(|source| Error::Address {
                address: address.clone(),
                source: Arc::new(source),
            })?;
            let address: Address = Arc::from(address);
            endpoints.insert(Arc::clone(&address), endpoint);
            addresses.push(address);
        }
        let first = addresses.first().cloned().unwrap_or_else(|| Arc::from(""));
        let scheme = endpoints.get(&first).and_then(|endpoint| endpoint.uri().scheme_str());
        let scheme = scheme.unwrap_or("http").to_owned();
        let places = Places::new(first, addresses);
        let all = watch::Sender::new(places.all());
        let known = Mutex::new(Known { places, endpoints, channels: HashMap::new() });
        let (begun, look) = (AtomicBool::new(false), Notify::new());
        let brokers = Arc::new(Self { manner, scheme, known, all, begun, look });
        let (living, gone) = oneshot::channel();
        tokio::spawn(keep_looking(Arc::clone(&brokers), gone));
        Ok((brokers, living))
    }

    /// A connection to a broker that answers, as far as anybody knows.
    pub(crate) fn link(&self) -> (Address, Link) {
        self.begin();
        let mut known = self.known();
        let address = Arc::clone(known.places.current());
        let channel = known.channel(&address);
        (address, InterceptedService::new(channel, self.manner.bearer.clone()))
    }

    /// The same to ask about tasks, once.
    pub(crate) fn tasks(&self, departure: &Departure) -> (Address, Tasks) {
        let (address, link) = self.link();
        let link = Noting { link, departure: departure.clone() };
        (address, TasksClient::new(link).max_decoding_message_size(ANSWER_BYTES_MAX))
    }

    /// A connection of its own, so that a stream of deliveries and the calls do not wait for one another.
    pub(crate) fn workers(&self, address: &Address) -> WorkersClient<Link> {
        self.begin();
        let channel = self.known().endpoint(address).connect_lazy();
        WorkersClient::with_interceptor(channel, self.manner.bearer.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// All addresses, whenever they change.
    pub(crate) fn watch(&self) -> watch::Receiver<Vec<Address>> {
        self.all.subscribe()
    }

    /// Whether the caller gave this address.
    pub(crate) fn is_given(&self, address: &str) -> bool {
        self.known().places.is_given(address)
    }

    /// Whether there is one place to ask, and no other.
    pub(crate) fn is_alone(&self) -> bool {
        self.all.borrow().len() < 2
    }

    /// A broker answered.
    pub(crate) fn answered(&self, address: &Address) {
        self.known().places.answered(address);
    }

    /// A broker failed so: whether to ask another at once.
    pub(crate) fn failed(&self, address: &Address, status: &Status) -> Next {
        match Failing::of(status) {
            Failing::Refused => Next::AfterPause,
            // It has no room, and the others have the same store.
            Failing::Busy if status.code() != tonic::Code::Unavailable => Next::AfterPause,
            Failing::Unreachable | Failing::Lost | Failing::Busy => self.is_away(address),
        }
    }

    fn is_away(&self, address: &Address) -> Next {
        let next = self.known().places.failed(address, clock::now());
        // A sole broker that is away cannot be asked about others.
        if !self.is_alone() {
            self.look.notify_one();
        }
        next
    }

    fn begin(&self) {
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.look.notify_one();
        }
    }

    /// Nothing is left half-way here by a panic.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks whoever answers for the topology, and takes it in. One that is silent is not asked for anything else either.
    async fn look(&self) {
        let (address, mut link) = self.link();
        let asked = async {
            let request = http::Request::get("/v1/topology").body(Body::empty());
            let request = request.map_err(|error| Status::internal(error.to_string()))?;
            std::future::poll_fn(|context| link.poll_ready(context)).await.map_err(status)?;
            let answer = link.call(request).await.map_err(status)?;
            if !answer.status().is_success() {
                return Ok(None);
            }
            let body = Limited::new(answer.into_body(), TOPOLOGY_BYTES_MAX).collect().await;
            Ok(body.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok()))
        };
        match timeout(LOOK_TIMEOUT, asked).await {
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
            let address: Address = Arc::from(format!("{}://{}", self.scheme, broker.address));
            if !known.endpoints.contains_key(&address) {
                match endpoint(&address, &self.manner, CONNECT_TIMEOUT_OF_SEVERAL) {
                    Ok(endpoint) => _ = known.endpoints.insert(Arc::clone(&address), endpoint),
                    Err(error) => {
                        tracing::debug!(%address, %error, "the topology has no such address");
                        continue;
                    }
                }
            }
            addresses.push(address);
        }
        if known.places.learn(addresses) {
            let all = known.places.all();
            tracing::debug!(?all, "the topology has changed");
            let Known { endpoints, channels, .. } = &mut *known;
            endpoints.retain(|address, _| all.contains(address));
            channels.retain(|address, _| all.contains(address));
            self.all.send_replace(all);
        }
    }
}

impl Known {
    fn endpoint(&self, address: &Address) -> Endpoint {
        let first = || self.endpoints.values().next().cloned();
        let endpoint = self.endpoints.get(address).cloned().or_else(first);
        endpoint.expect("there is at least the one that was given")
    }

    fn channel(&mut self, address: &Address) -> Channel {
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
    brokers: Vec<Broker>,
}

#[derive(Debug, Deserialize)]
struct Broker {
    address: String,
}

/// From the first call until the client is gone.
async fn keep_looking(brokers: Arc<Brokers>, mut gone: oneshot::Receiver<()>) {
    let looking = async {
        brokers.look.notified().await;
        loop {
            brokers.look().await;
            clock::after(LOOK_PAUSE).await;
            _ = timeout(LOOK_EVERY, brokers.look.notified()).await;
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
    manner: &Manner,
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
    endpoint.tls_config(match &manner.authority {
        Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
        None => tls.with_webpki_roots(),
    })
}
