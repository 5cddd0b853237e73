//! Connections to peers, and the calls that are made over them.
//!
//! Each peer has one persistent connection, made by the first call and made again when it breaks,
//! and a second one for polls, so that long waits do not hold up other calls. A connection that has
//! gone silent is detected within twice [`KEEP_ALIVE`]. Every call has a timeout. Calls, commands
//! and bytes in flight per peer are bounded, and so is the number of peers; [`Peers::retain`] drops
//! those that have left the cluster.
//!
//! `command_queue` keeps the commands of one partition in order and sends them in batches.

mod command_queue;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_core::{BrokerId, Epoch, Namespace, PartitionId};
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
use super::{MESSAGE_BYTES_MAX, PeerError, Secret, actions, measure, view};
use crate::actions::ActionList;
use crate::courier::queue::{LeaseToken, PollOptions, SettleResult, SettleScope, Settlement};
use crate::measures::series::EndSeries;
use crate::measures::windows::{WindowSpec, WindowSum};
use crate::namespace_view::{NamespaceView, ViewQuery};
use command_queue::CommandQueues;

/// Peers: far more than a cluster has brokers.
const PEERS_MAX: usize = 1024;
/// Calls in flight to one peer, which accepts 256 on a connection. Further calls wait.
const CALLS_MAX: usize = 128;
/// Polls in flight to one peer. Further polls are refused.
const POLLS_MAX: usize = 256;
/// Bytes to one peer, in flight or queued: two of the largest messages.
const BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;
/// The bytes of a message beyond its encoded content.
const MESSAGE_REST: usize = 64;

/// How long connecting may take: peers are in the same network.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// The interval of keep-alive pings, and how long an answer to one may take.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// The flow-control window: large enough that a sender does not wait for round trips.
const WINDOW_BYTES: u32 = 4 << 20;

/// How long a call may take that needs the store.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long a call may take that needs no store.
const ANSWER_SOON_MAX: Duration = Duration::from_secs(2);
/// How long a call may wait until it is sent.
const PERMIT_MAX: Duration = Duration::from_secs(2);
/// How long a poll may take beyond the time that it waits.
const POLL_REST_MAX: Duration = Duration::from_secs(5);

/// How peers are reached.
#[derive(Clone, Default)]
pub(crate) enum Transport {
    /// Without encryption, for a trusted network.
    #[default]
    Plain,
    /// With TLS.
    Tls {
        /// The certificate authority (PEM) to trust instead of the public ones.
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

/// The other brokers of the cluster.
#[derive(Debug)]
pub(crate) struct Peers {
    me: BrokerId,
    secret: Secret,
    transport: Transport,
    /// The runtime on which connections run.
    runtime: runtime::Handle,
    interner: Arc<Interner>,
    peers: Mutex<HashMap<BrokerId, Arc<Peer>>>,
}

/// The connections to one broker, and their limits.
#[derive(Debug)]
struct Peer {
    secret: Secret,
    /// For calls that are answered soon.
    fast: PeersClient<Channel>,
    /// For polls.
    slow: PeersClient<Channel>,
    calls: Semaphore,
    polls: Semaphore,
    bytes: Arc<Semaphore>,
    commands: Arc<Semaphore>,
    queues: CommandQueues,
    interner: Arc<Interner>,
}

impl Peers {
    /// Connects to no broker yet. Must be called on the runtime on which connections are to run.
    pub(crate) fn new(
        me: BrokerId,
        secret: Secret,
        transport: Transport,
    ) -> Result<Self, tonic::transport::Error> {
        // Reports invalid certificates now and not at the first call.
        transport.endpoint(&BrokerId::new("localhost:1"))?;
        let runtime = runtime::Handle::current();
        let (interner, peers) = (Arc::default(), Mutex::default());
        Ok(Self { me, secret, transport, runtime, interner, peers })
    }

    /// Drops the connections to all brokers but these. Calls in flight still finish.
    pub(crate) fn retain(&self, brokers: &[BrokerId]) {
        self.lock().retain(|broker, _| brokers.contains(broker));
    }

    /// Returns the number of peers with a connection.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Forwards commands to the owner of a partition at a broker. Returns one reply per command, in
    /// order. An error applies to all of the commands.
    ///
    /// The commands are queued when this function returns, before its future is polled: the owner
    /// decides them in the order of these calls.
    pub(crate) fn forward(
        &self,
        to: &BrokerId,
        partition: PartitionId,
        commands: &[Command],
    ) -> impl Future<Output = Result<Replies, PeerError>> + Send + use<> {
        let queued =
            self.peer(to).and_then(|peer| peer.enqueue(partition, commands, &self.runtime));
        async move {
            let lost = |why: &str| Err(PeerError::Lost(why.to_owned()));
            // Covers a message in flight before this one, and this one; only a bound.
            match timeout(PERMIT_MAX + 3 * ANSWER_MAX, queued?).await {
                Ok(replies) => replies.unwrap_or_else(|_| lost("the connection was closed")),
                Err(_) => lost("no answer in time"),
            }
        }
    }

    /// Hands a released partition over, with its deliveries in flight. Returns the epoch of the
    /// new owner.
    pub(crate) async fn take(
        &self,
        to: &BrokerId,
        partition: PartitionId,
        epoch: Epoch,
        in_flight: &[InFlight],
    ) -> Result<Epoch, PeerError> {
        let peer = self.peer(to)?;
        let in_flight = wire::put_in_flight(in_flight);
        let _bytes = peer.reserve(in_flight.len())?;
        let message = v1::HandOverRequest {
            partition: u32::from(partition.get()),
            epoch: epoch.get(),
            in_flight: in_flight.into(),
        };
        let request = peer.request(message);
        let taken =
            peer.call(ANSWER_MAX, async |mut client| client.hand_over(request).await).await?;
        let epoch = taken.into_inner().epoch;
        Epoch::new(epoch).ok_or_else(|| PeerError::Lost("invalid epoch".to_owned()))
    }

    /// Passes reports to the present owner of their partition. After any error, all of them may be
    /// sent again: a report of a settled delivery changes nothing.
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

    /// Sums the gauges of all owners of a broker, of one namespace or of all.
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
        wire::read_gauges(&answer.into_inner().gauges).map_err(undecodable)
    }

    /// Waits for deliveries of a queue at a broker. If the future is dropped, nothing is leased,
    /// unless the answer was already on its way.
    pub(crate) async fn poll(
        &self,
        to: &BrokerId,
        options: &PollOptions,
    ) -> Result<Vec<Polled>, PeerError> {
        let peer = self.peer(to)?;
        let _permit = peer.polls.try_acquire().map_err(|_| PeerError::Busy)?;
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let request = peer.request(v1::PollRequest {
            namespace: options.namespace.as_str().to_owned(),
            queue: options.queue.as_str().to_owned(),
            max: u32::try_from(options.max).unwrap_or(u32::MAX),
            wait_ms: millis(options.wait),
            lease_ms: options.lease.map(millis),
            worker: options.label.name.to_string(),
            address: options.label.address.to_string(),
        });
        let mut client = peer.slow.clone();
        let polling = async {
            let mut pieces = client.poll(request).await.map_err(from_status)?.into_inner();
            let mut polled = Vec::new();
            while let Some(piece) = pieces.message().await.map_err(from_status)? {
                polled.extend(wire::read_deliveries(&piece.deliveries).map_err(undecodable)?);
            }
            Ok(polled)
        };
        in_time(options.wait.saturating_add(POLL_REST_MAX), polling).await
    }

    /// Returns what a broker knows of a namespace.
    pub(crate) async fn view(
        &self,
        to: &BrokerId,
        query: &ViewQuery,
    ) -> Result<NamespaceView, PeerError> {
        let peer = self.peer(to)?;
        let request = peer.request(view::put_query(query));
        let answer =
            peer.call(ANSWER_SOON_MAX, async |mut client| client.view(request).await).await?;
        view::read_view(answer.into_inner()).map_err(undecodable)
    }

    /// Returns what a broker has counted within windows, one sum per window.
    pub(crate) async fn measure(
        &self,
        to: &BrokerId,
        windows: &[WindowSpec],
    ) -> Result<Vec<WindowSum>, PeerError> {
        let peer = self.peer(to)?;
        let request = peer.request(measure::put_windows(windows));
        let answer =
            peer.call(ANSWER_SOON_MAX, async |mut client| client.measure(request).await).await?;
        measure::read_sums(answer.into_inner(), windows.len()).map_err(undecodable)
    }

    /// Returns what has ended at a broker in each minute.
    pub(crate) async fn series(
        &self,
        to: &BrokerId,
        namespace: &Namespace,
    ) -> Result<EndSeries, PeerError> {
        let peer = self.peer(to)?;
        let namespace = namespace.as_str().to_owned();
        let request = peer.request(v1::SeriesRequest { namespace });
        let answer =
            peer.call(ANSWER_SOON_MAX, async |mut client| client.series(request).await).await?;
        measure::read_series(answer.into_inner()).map_err(undecodable)
    }

    /// Returns what operators did in a namespace through a broker.
    pub(crate) async fn actions(
        &self,
        to: &BrokerId,
        namespace: &Namespace,
    ) -> Result<ActionList, PeerError> {
        let peer = self.peer(to)?;
        let namespace = namespace.as_str().to_owned();
        let request = peer.request(v1::PeerActionsRequest { namespace });
        let answer =
            peer.call(ANSWER_SOON_MAX, async |mut client| client.actions(request).await).await?;
        actions::read_actions(answer.into_inner()).map_err(undecodable)
    }

    /// Sends settlements to the broker that leased the deliveries. Returns one result per
    /// settlement, in order.
    pub(crate) async fn settle(
        &self,
        to: &BrokerId,
        scope: SettleScope<'_>,
        settlements: &[(LeaseToken, Settlement)],
    ) -> Result<Vec<SettleResult>, PeerError> {
        let peer = self.peer(to)?;
        let encoded = wire::put_settlements(settlements);
        let _bytes = peer.reserve(encoded.len())?;
        let request = peer.request(v1::SettleRequest {
            namespace: scope.namespace.as_str().to_owned(),
            settlements: encoded.into(),
            queue: scope.queue.map_or_else(String::new, |queue| queue.as_str().to_owned()),
        });
        let answer = peer.call(ANSWER_MAX, async |mut client| client.settle(request).await).await?;
        let results =
            wire::read_settle_results(&answer.into_inner().results).map_err(undecodable)?;
        if results.len() != settlements.len() {
            return Err(PeerError::Lost("wrong number of answers".to_owned()));
        }
        Ok(results)
    }

    /// Returns the connections to a broker; creates them if there are none.
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
            PeerError::Unreachable(format!("invalid address {broker}: {error}"))
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
            fast: client(),
            slow: client(),
            calls: Semaphore::new(CALLS_MAX),
            polls: Semaphore::new(POLLS_MAX),
            bytes: Arc::new(Semaphore::new(BYTES_MAX)),
            commands: Arc::new(Semaphore::new(COMMANDS_MAX)),
            queues: CommandQueues::default(),
            interner: Arc::clone(&self.interner),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BrokerId, Arc<Peer>>> {
        // Every update is a single step, so the map is consistent even after a panic.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    /// Sends a batch of commands. Returns one reply per command.
    async fn send(
        &self,
        partition: PartitionId,
        count: usize,
        commands: Vec<u8>,
    ) -> Result<Replies, PeerError> {
        let partition = u32::from(partition.get());
        let request = self.request(v1::ForwardRequest { partition, commands: commands.into() });
        let mut client = self.fast.clone();
        let _permit = self.call_permit().await?;
        let calling = async {
            let mut pieces = client.forward(request).await.map_err(from_status)?.into_inner();
            let mut replies = Replies::new();
            while let Some(piece) = pieces.message().await.map_err(from_status)? {
                let piece = wire::read_answers(&piece.replies, &self.interner);
                replies.extend(piece.map_err(undecodable)?);
                if replies.len() > count {
                    break;
                }
            }
            if replies.len() != count {
                return Err(PeerError::Lost("wrong number of answers".to_owned()));
            }
            Ok(replies)
        };
        in_time(ANSWER_MAX, calling).await
    }

    /// Makes a call as soon as a permit is free.
    async fn call<T, F>(
        &self,
        answer_max: Duration,
        call: impl FnOnce(PeersClient<Channel>) -> F,
    ) -> Result<T, PeerError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let _permit = self.call_permit().await?;
        let call = call(self.fast.clone());
        in_time(answer_max, async { call.await.map_err(from_status) }).await
    }

    async fn call_permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, PeerError> {
        let permit = timeout(PERMIT_MAX, self.calls.acquire()).await;
        permit.ok().and_then(Result::ok).ok_or(PeerError::Busy)
    }

    /// Adds the secret of the cluster to a message.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.secret.header.clone());
        request
    }

    /// Reserves bytes for a message. Fails if it is too large for one message, or for now.
    fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, PeerError> {
        let fits = bytes + MESSAGE_REST <= MESSAGE_BYTES_MAX;
        let count = u32::try_from(bytes).ok().filter(|_| fits).ok_or_else(|| {
            PeerError::Refused(format!("{bytes} bytes are too large for one message"))
        })?;
        Arc::clone(&self.bytes).try_acquire_many_owned(count).map_err(|_| PeerError::Busy)
    }
}

/// Limits the time of a call.
async fn in_time<T>(
    answer_max: Duration,
    call: impl Future<Output = Result<T, PeerError>>,
) -> Result<T, PeerError> {
    let lost = |_| Err(PeerError::Lost("no answer in time".to_owned()));
    timeout(answer_max, call).await.unwrap_or_else(lost)
}

fn from_status(status: Status) -> PeerError {
    PeerError::of(&status)
}

/// An answer that cannot be decoded: the call may have been executed.
fn undecodable(error: WireError) -> PeerError {
    PeerError::Lost(error.to_string())
}
