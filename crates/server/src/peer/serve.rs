//! The door for peers: their calls become calls of what this broker holds.
//!
//! In: calls of brokers that show the secret of the cluster. Out: answers of [`Home`]. Invariants: a call whose bytes are not
//! understood, or that is about a partition which is not held here, has done nothing, and says so; nothing is passed on to a third broker.
//! Whoever mounts it leaves it open while the broker drains: what peers say then is about what moves.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Epoch, Namespace, PartitionId, Queue, TIMEOUT_MAX};
use punctual_engine::{Command, Gauges, InFlight, Replies, Report};
use punctual_proto::v1;
use punctual_proto::v1::peers_server::{Peers, PeersServer};
use punctual_store::codec::Interner;
use tokio_stream::{Stream, StreamExt as _};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};

use super::wire::{self, Polled, WireError};
use super::{MESSAGE_BYTES_MAX, PeerError, Secret};
use crate::courier::queue::{Heard, Place, Token, Word};

/// How long a poll may wait: longer than any worker may.
const WAIT_MAX: Duration = Duration::from_secs(65);

/// What a broker does for its peers.
pub(crate) trait Home: Send + Sync + 'static {
    /// Asks the owner of a partition, who is here or nowhere: [`PeerError::NotMine`] means that no command was given to anybody.
    fn ask(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, PeerError>> + Send;

    /// Takes a partition that a peer has let go of, with what is under way. Replies when it is held here. It goes on when nobody waits
    /// for the answer any more.
    fn take(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        flights: Vec<InFlight>,
    ) -> impl Future<Output = Result<Epoch, PeerError>> + Send;

    /// Takes what came of deliveries that were under way when their partition came here.
    fn report(&self, partition: PartitionId, reports: Vec<Report>) -> Result<(), PeerError>;

    /// How much there is with all owners here, of one namespace or of all.
    fn gauges(
        &self,
        namespace: Option<Namespace>,
    ) -> impl Future<Output = Result<Gauges, PeerError>> + Send;

    /// Waits for deliveries of a queue that owners here have.
    fn poll(
        &self,
        namespace: Namespace,
        queue: Queue,
        max: usize,
        wait: Duration,
        lease: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<Polled>, PeerError>> + Send;

    /// Takes the words of a worker that has polled. One answer each, in order.
    fn settle(&self, place: Place<'_>, words: Vec<(Token, Word)>) -> Result<Vec<Heard>, PeerError>;
}

/// The door, to be mounted beside the other services.
pub(crate) fn door<H: Home>(
    home: Arc<H>,
    secret: Secret,
) -> InterceptedService<PeersServer<Door<H>>, Gate> {
    let door = PeersServer::new(Door { home, interner: Interner::default() })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    InterceptedService::new(door, Gate(secret))
}

/// Lets a call through that shows the secret of the cluster. It stands before the door, so that nothing of what a stranger sends is read.
#[derive(Debug, Clone)]
pub(crate) struct Gate(Secret);

impl Interceptor for Gate {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let mut shown = request.metadata().get_all("authorization").iter();
        // Of two that differ, nobody can say which one was meant.
        match (shown.next(), shown.next()) {
            (Some(shown), None) if self.0.is_shown(shown) => Ok(request),
            _ => Err(Status::unauthenticated("the secret of the cluster is needed")),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Door<H> {
    home: Arc<H>,
    interner: Interner,
}

type Pieces<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl<H: Home> Peers for Door<H> {
    type AskStream = Pieces<v1::AskAnswers>;

    async fn ask(
        &self,
        request: Request<v1::AskRequest>,
    ) -> Result<Response<Self::AskStream>, Status> {
        let v1::AskRequest { partition, commands } = request.into_inner();
        let partition = partition_of(partition)?;
        let commands = wire::read_commands(&commands, &self.interner).map_err(not_understood)?;
        let answers = self.home.ask(partition, commands).await.map_err(PeerError::into_status)?;
        let pieces = tokio_stream::iter(wire::answer_pieces(answers));
        let pieces = pieces.map(|piece| Ok(v1::AskAnswers { answers: piece.into() }));
        Ok(Response::new(Box::pin(pieces)))
    }

    async fn take(
        &self,
        request: Request<v1::TakeRequest>,
    ) -> Result<Response<v1::TakeAnswer>, Status> {
        let v1::TakeRequest { partition, epoch, flights } = request.into_inner();
        let partition = partition_of(partition)?;
        let epoch = Epoch::new(epoch).ok_or_else(|| Status::invalid_argument("no such epoch"))?;
        let flights = wire::read_flights(&flights).map_err(not_understood)?;
        let home = Arc::clone(&self.home);
        // Taking half of a partition would be worse than either: a peer that hangs up does not end it.
        let taking = tokio::spawn(async move { home.take(partition, epoch, flights).await });
        let taken = taking.await.map_err(|_| Status::unknown("taking it came to no end"))?;
        let epoch = taken.map_err(PeerError::into_status)?;
        Ok(Response::new(v1::TakeAnswer { epoch: epoch.get() }))
    }

    async fn report(
        &self,
        request: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportAnswer>, Status> {
        let v1::ReportRequest { partition, reports } = request.into_inner();
        let partition = partition_of(partition)?;
        let reports = wire::read_reports(&reports).map_err(not_understood)?;
        self.home.report(partition, reports).map_err(PeerError::into_status)?;
        Ok(Response::new(v1::ReportAnswer {}))
    }

    async fn gauge(
        &self,
        request: Request<v1::GaugeRequest>,
    ) -> Result<Response<v1::GaugeAnswer>, Status> {
        let v1::GaugeRequest { namespace } = request.into_inner();
        let namespace = namespace.as_deref().map(namespace_of).transpose()?;
        let gauges = self.home.gauges(namespace).await.map_err(PeerError::into_status)?;
        Ok(Response::new(v1::GaugeAnswer { gauges: wire::put_gauges(&gauges).into() }))
    }

    type PollStream = Pieces<v1::PollAnswer>;

    async fn poll(
        &self,
        request: Request<v1::PollRequest>,
    ) -> Result<Response<Self::PollStream>, Status> {
        let v1::PollRequest { namespace, queue, max, wait_ms, lease_ms } = request.into_inner();
        let namespace = namespace_of(&namespace)?;
        let queue = Queue::new(&queue).map_err(invalid)?;
        let max = usize::try_from(max).unwrap_or(usize::MAX).min(wire::DELIVERIES_MAX);
        let wait = Duration::from_millis(wait_ms).min(WAIT_MAX);
        let lease = lease_ms.map(|lease| Duration::from_millis(lease).min(TIMEOUT_MAX));
        let polled = self.home.poll(namespace, queue, max, wait, lease).await;
        let pieces = wire::delivery_pieces(polled.map_err(PeerError::into_status)?);
        let pieces =
            tokio_stream::iter(pieces).map(|piece| Ok(v1::PollAnswer { deliveries: piece.into() }));
        Ok(Response::new(Box::pin(pieces)))
    }

    async fn settle(
        &self,
        request: Request<v1::SettleRequest>,
    ) -> Result<Response<v1::SettleAnswer>, Status> {
        let v1::SettleRequest { namespace, words, queue } = request.into_inner();
        let namespace = namespace_of(&namespace)?;
        // A broker of before this was asked does not say.
        let queue = (!queue.is_empty()).then(|| Queue::new(&queue)).transpose().map_err(invalid)?;
        let place = Place { namespace: &namespace, queue: queue.as_ref() };
        let words = wire::read_words(&words).map_err(not_understood)?;
        let heard = self.home.settle(place, words).map_err(PeerError::into_status)?;
        Ok(Response::new(v1::SettleAnswer { heard: wire::put_heard(&heard).into() }))
    }
}

fn partition_of(number: u32) -> Result<PartitionId, Status> {
    let partition = u16::try_from(number).ok().and_then(PartitionId::new);
    partition.ok_or_else(|| Status::invalid_argument("there can be no such partition"))
}

fn namespace_of(name: &str) -> Result<Namespace, Status> {
    Namespace::new(name).map_err(invalid)
}

fn invalid(invalid: punctual_core::Invalid) -> Status {
    Status::invalid_argument(invalid.to_string())
}

fn not_understood(error: WireError) -> Status {
    PeerError::Refused(error.to_string()).into_status()
}
