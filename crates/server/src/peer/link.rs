//! Links: one standing connection to each peer, made by the first call and again whenever it broke.
//!
//! In: what is asked of a peer. Out: its answer, within a time. Polls, which wait, have a connection of their own, so that they never
//! stand in the way of what is answered soon. A connection that has gone silent is noticed within [`KEEP_ALIVE`] twice.
//! Bound: calls, commands and bytes under way to each peer, and peers; those who are no longer of the cluster are dropped ([`Peers::retain`]).
//! Next door: `line` keeps commands of one partition in order and lets them travel together.

mod line;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_core::{BrokerId, Epoch, Namespace, PartitionId, Queue};
use punctual_engine::{COMMANDS_MAX, Command, Gauges, InFlight, Replies, Report};
use punctual_proto::v1;
use punctual_proto::v1::peers_client::PeersClient;
use punctual_store::codec::Interner;
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

use super::wire::{self, Polled, WireError};
use super::{MESSAGE_BYTES_MAX, PeerError, Secret};
use crate::courier::queue::{Heard, Place, Token, Word};
use line::Lines;

/// Peers at once: far more than a cluster has brokers.
const PEERS_MAX: usize = 1024;
/// Calls under way to one peer, which takes 256 on a connection. More wait.
const CALLS_MAX: usize = 128;
/// Polls under way to one peer. More are refused.
const POLLS_MAX: usize = 256;
/// Bytes under way to one peer, those in line included: two of the largest messages.
const BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;
/// What a message has beside its bytes.
const MESSAGE_REST: usize = 64;

/// How long making a connection may take: peers are near.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How often a connection is asked for a sign of life, and how long it may take to give one.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// What may be on the way to us unread, so that a round trip is not a stop.
const WINDOW_BYTES: u32 = 4 << 20;

/// How long an answer may take, if it needs the store.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long an answer may take that needs no store.
const ANSWER_SOON_MAX: Duration = Duration::from_secs(2);
/// How long a call may wait for those before it.
const TURN_MAX: Duration = Duration::from_secs(2);
/// How long the end of a poll may take, beyond its wait.
const POLL_REST_MAX: Duration = Duration::from_secs(5);

/// How peers are reached.
#[derive(Clone, Default)]
pub(crate) enum Transport {
    /// Over a network that nobody else listens on.
    #[default]
    Plain,
    /// Over TLS.
    Tls {
        /// The certificate authority (PEM) that is trusted, instead of the public ones.
        authority: Option<Vec<u8>>,
    },
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::Tls { .. } => "Tls",
        })
    }
}

impl Transport {
    fn endpoint(&self, broker: &BrokerId) -> Result<Endpoint, tonic::transport::Error> {
        let scheme = match self {
            Self::Plain => "http",
            Self::Tls { .. } => "https",
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{broker}"))?
            .connect_timeout(CONNECT_MAX)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES);
        let tls = ClientTlsConfig::new();
        match self {
            Self::Plain => Ok(endpoint),
            Self::Tls { authority: None } => endpoint.tls_config(tls.with_webpki_roots()),
            Self::Tls { authority: Some(pem) } => {
                endpoint.tls_config(tls.ca_certificate(Certificate::from_pem(pem)))
            }
        }
    }
}

/// The other brokers.
#[derive(Debug)]
pub(crate) struct Peers {
    me: BrokerId,
    secret: Secret,
    transport: Transport,
    /// Where connections live.
    runtime: runtime::Handle,
    interner: Arc<Interner>,
    peers: Mutex<HashMap<BrokerId, Arc<Peer>>>,
}

/// One of them.
#[derive(Debug)]
struct Peer {
    secret: Secret,
    /// For what is answered soon,
    quick: PeersClient<Channel>,
    /// and for what waits.
    patient: PeersClient<Channel>,
    calls: Semaphore,
    polls: Semaphore,
    bytes: Arc<Semaphore>,
    commands: Arc<Semaphore>,
    lines: Lines,
    interner: Arc<Interner>,
}

impl Peers {
    /// Nobody is called yet. To be made in the runtime in which connections are to live.
    pub(crate) fn new(
        me: BrokerId,
        secret: Secret,
        transport: Transport,
    ) -> Result<Self, tonic::transport::Error> {
        // That the certificates make sense is better known before the first call.
        transport.endpoint(&BrokerId::new("localhost:1"))?;
        let runtime = runtime::Handle::current();
        let (interner, peers) = (Arc::default(), Mutex::default());
        Ok(Self { me, secret, transport, runtime, interner, peers })
    }

    /// Drops the links to all others. What is under way there comes to its end.
    pub(crate) fn retain(&self, brokers: &[BrokerId]) {
        self.lock().retain(|broker, _| brokers.contains(broker));
    }

    /// How many links there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Has the owner of a partition asked, at the broker that is taken for its holder. One answer for each command, in order.
    ///
    /// It is in line when this returns, before anybody waits for the answers: what is asked first, of one partition at one peer,
    /// is decided first. An error is about all of the commands.
    pub(crate) fn ask(
        &self,
        to: &BrokerId,
        partition: PartitionId,
        commands: &[Command],
    ) -> impl Future<Output = Result<Replies, PeerError>> + Send + use<> {
        let asked = self.peer(to).and_then(|peer| peer.ask(partition, commands, &self.runtime));
        async move {
            let lost = |why: &str| Err(PeerError::Lost(why.to_owned()));
            // Each has the time of the one before it, and its own; this is only a bound.
            match timeout(TURN_MAX + 3 * ANSWER_MAX, asked?).await {
                Ok(answered) => answered.unwrap_or_else(|_| lost("the link was closed")),
                Err(_) => lost("no answer in time"),
            }
        }
    }

    /// Hands a partition over: it was let go of here, and its deliveries under way are these.
    pub(crate) async fn take(
        &self,
        to: &BrokerId,
        partition: PartitionId,
        epoch: Epoch,
        flights: &[InFlight],
    ) -> Result<Epoch, PeerError> {
        let peer = self.peer(to)?;
        let flights = wire::put_flights(flights);
        let _bytes = peer.reserve(flights.len())?;
        let message = v1::TakeRequest {
            partition: u32::from(partition.get()),
            epoch: epoch.get(),
            flights: flights.into(),
        };
        let request = peer.request(message);
        let taken = peer.call(ANSWER_MAX, async |mut client| client.take(request).await).await?;
        let epoch = taken.into_inner().epoch;
        Epoch::new(epoch).ok_or_else(|| PeerError::Lost("no such epoch".to_owned()))
    }

    /// Passes on what came of deliveries to whoever holds their partition now. Whatever fails, all of it may be sent again: a
    /// report of what is settled changes nothing.
    pub(crate) async fn report(
        &self,
        to: &BrokerId,
        partition: PartitionId,
        reports: &[Report],
    ) -> Result<(), PeerError> {
        let peer = self.peer(to)?;
        for reports in reports.chunks(wire::REPORTS_MAX) {
            let reports = wire::put_reports(reports);
            let _bytes = peer.reserve(reports.len())?;
            let partition = u32::from(partition.get());
            let request = peer.request(v1::ReportRequest { partition, reports: reports.into() });
            peer.call(ANSWER_MAX, async |mut client| client.report(request).await).await?;
        }
        Ok(())
    }

    /// How much there is with all owners of a broker, of one namespace or of all.
    pub(crate) async fn gauges(
        &self,
        to: &BrokerId,
        namespace: Option<&Namespace>,
    ) -> Result<Gauges, PeerError> {
        let peer = self.peer(to)?;
        let namespace = namespace.map(|namespace| namespace.as_str().to_owned());
        let request = peer.request(v1::GaugeRequest { namespace });
        let answer =
            peer.call(ANSWER_SOON_MAX, async |mut client| client.gauge(request).await).await?;
        wire::read_gauges(&answer.into_inner().gauges).map_err(not_understood)
    }

    /// Waits up to `wait` for at most `max` deliveries of a queue that owners of a broker have. Whoever stops waiting has taken nothing,
    /// unless the answer was on its way.
    pub(crate) async fn poll(
        &self,
        to: &BrokerId,
        namespace: &Namespace,
        queue: &Queue,
        max: usize,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Result<Vec<Polled>, PeerError> {
        let peer = self.peer(to)?;
        let _permit = peer.polls.try_acquire().map_err(|_| PeerError::Busy)?;
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let request = peer.request(v1::PollRequest {
            namespace: namespace.as_str().to_owned(),
            queue: queue.as_str().to_owned(),
            max: u32::try_from(max).unwrap_or(u32::MAX),
            wait_ms: millis(wait),
            lease_ms: lease.map(millis),
        });
        let mut client = peer.patient.clone();
        let polling = async {
            let mut pieces = client.poll(request).await.map_err(of)?.into_inner();
            let mut polled = Vec::new();
            while let Some(piece) = pieces.message().await.map_err(of)? {
                polled.extend(wire::read_deliveries(&piece.deliveries).map_err(not_understood)?);
            }
            Ok(polled)
        };
        in_time(wait.saturating_add(POLL_REST_MAX), polling).await
    }

    /// Says what a worker says of deliveries that were leased at a broker. One answer for each word, in order.
    pub(crate) async fn settle(
        &self,
        to: &BrokerId,
        place: Place<'_>,
        words: &[(Token, Word)],
    ) -> Result<Vec<Heard>, PeerError> {
        let peer = self.peer(to)?;
        let encoded = wire::put_words(words);
        let _bytes = peer.reserve(encoded.len())?;
        let request = peer.request(v1::SettleRequest {
            namespace: place.namespace.as_str().to_owned(),
            words: encoded.into(),
            queue: place.queue.map_or_else(String::new, |queue| queue.as_str().to_owned()),
        });
        let answer = peer.call(ANSWER_MAX, async |mut client| client.settle(request).await).await?;
        let heard = wire::read_heard(&answer.into_inner().heard).map_err(not_understood)?;
        if heard.len() != words.len() {
            return Err(PeerError::Lost("another number of answers".to_owned()));
        }
        Ok(heard)
    }

    /// The link to a peer, made if there is none.
    fn peer(&self, broker: &BrokerId) -> Result<Arc<Peer>, PeerError> {
        if *broker == self.me {
            return Err(PeerError::Refused("a broker does not call itself".to_owned()));
        }
        let mut peers = self.lock();
        if let Some(peer) = peers.get(broker) {
            return Ok(Arc::clone(peer));
        }
        if peers.len() >= PEERS_MAX {
            return Err(PeerError::Busy);
        }
        let endpoint = self.transport.endpoint(broker);
        let endpoint = endpoint.map_err(|error| {
            PeerError::Unreachable(format!("{broker} makes no sense as an address: {error}"))
        })?;
        let peer = Arc::new(self.link(&endpoint));
        peers.insert(broker.clone(), Arc::clone(&peer));
        Ok(peer)
    }

    fn link(&self, endpoint: &Endpoint) -> Peer {
        let _runtime = self.runtime.enter();
        let client = || {
            PeersClient::new(endpoint.connect_lazy())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        };
        Peer {
            secret: self.secret.clone(),
            quick: client(),
            patient: client(),
            calls: Semaphore::new(CALLS_MAX),
            polls: Semaphore::new(POLLS_MAX),
            bytes: Arc::new(Semaphore::new(BYTES_MAX)),
            commands: Arc::new(Semaphore::new(COMMANDS_MAX)),
            lines: Lines::default(),
            interner: Arc::clone(&self.interner),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BrokerId, Arc<Peer>>> {
        // A table of links is as good after a panic as before it.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    /// Sends commands that travel together. Out: an answer for each.
    async fn send(
        &self,
        partition: PartitionId,
        count: usize,
        commands: Vec<u8>,
    ) -> Result<Replies, PeerError> {
        let partition = u32::from(partition.get());
        let request = self.request(v1::AskRequest { partition, commands: commands.into() });
        let mut client = self.quick.clone();
        let _turn = self.turn().await?;
        let asking = async {
            let mut pieces = client.ask(request).await.map_err(of)?.into_inner();
            let mut answers = Replies::new();
            while let Some(piece) = pieces.message().await.map_err(of)? {
                let piece = wire::read_answers(&piece.answers, &self.interner);
                answers.extend(piece.map_err(not_understood)?);
                if answers.len() > count {
                    break;
                }
            }
            if answers.len() != count {
                return Err(PeerError::Lost("another number of answers".to_owned()));
            }
            Ok(answers)
        };
        in_time(ANSWER_MAX, asking).await
    }

    /// Calls, when it is its turn.
    async fn call<T, F>(
        &self,
        answer_max: Duration,
        call: impl FnOnce(PeersClient<Channel>) -> F,
    ) -> Result<T, PeerError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let _turn = self.turn().await?;
        let call = call(self.quick.clone());
        in_time(answer_max, async { call.await.map_err(of) }).await
    }

    async fn turn(&self) -> Result<tokio::sync::SemaphorePermit<'_>, PeerError> {
        let turn = timeout(TURN_MAX, self.calls.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or(PeerError::Busy)
    }

    /// Shows the secret with every call.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.secret.sent.clone());
        request
    }

    /// Room for a message, if it is not too large for any.
    fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, PeerError> {
        let fits = bytes + MESSAGE_REST <= MESSAGE_BYTES_MAX;
        let count = u32::try_from(bytes).ok().filter(|_| fits).ok_or_else(|| {
            PeerError::Refused(format!("{bytes} bytes are too large for one message"))
        })?;
        Arc::clone(&self.bytes).try_acquire_many_owned(count).map_err(|_| PeerError::Busy)
    }
}

/// What a call comes to within a time.
async fn in_time<T>(
    answer_max: Duration,
    call: impl Future<Output = Result<T, PeerError>>,
) -> Result<T, PeerError> {
    let lost = |_| Err(PeerError::Lost("no answer in time".to_owned()));
    timeout(answer_max, call).await.unwrap_or_else(lost)
}

fn of(status: Status) -> PeerError {
    PeerError::of(&status)
}

/// An answer that makes no sense: what it was the answer to may be done.
fn not_understood(error: WireError) -> PeerError {
    PeerError::Lost(error.to_string())
}
