//! The server side of calls between brokers.
//!
//! [`PeerApi`] decodes the calls of peers and passes them to a [`LocalBroker`]. [`RequireSecret`]
//! refuses callers that do not know the secret of the cluster. A call that cannot be decoded, or
//! that names a partition without an owner here, changes nothing and fails. The server stays
//! available while the broker drains, because hand-overs and orphan reports arrive then.

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
use super::{MESSAGE_BYTES_MAX, PeerError, Secret, actions, measure, view};
use crate::actions::ActionList;
use crate::courier::queue::{
    LeaseToken, PollOptions, SettleResult, SettleScope, Settlement, WorkerLabel,
};
use crate::measures::series::EndSeries;
use crate::measures::windows::{WindowSpec, WindowSum};
use crate::namespace_view::{NamespaceView, ViewQuery};

/// How long a poll may wait: longer than the API lets a worker wait.
const WAIT_MAX: Duration = Duration::from_secs(65);

/// What a broker does for its peers.
pub(crate) trait LocalBroker: Send + Sync + 'static {
    /// Sends commands to the local owner of a partition. [`PeerError::NotMine`] means that no
    /// command was executed.
    fn call(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Replies, PeerError>> + Send;

    /// Takes a partition that a peer has released, with its deliveries in flight. Returns the epoch
    /// of the new owner once it has started. Continues even if the peer no longer waits.
    fn take(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        in_flight: Vec<InFlight>,
    ) -> impl Future<Output = Result<Epoch, PeerError>> + Send;

    /// Takes reports of deliveries that were in flight when their partition moved here.
    fn report(&self, partition: PartitionId, reports: Vec<Report>) -> Result<(), PeerError>;

    /// Sums the gauges of the local owners, of one namespace or of all.
    fn gauges(
        &self,
        namespace: Option<Namespace>,
    ) -> impl Future<Output = Result<Gauges, PeerError>> + Send;

    /// Returns what this broker knows of a namespace.
    fn view(
        &self,
        query: ViewQuery,
    ) -> impl Future<Output = Result<NamespaceView, PeerError>> + Send;

    /// Returns what this broker has counted within windows, one sum per window.
    fn measure(&self, windows: &[WindowSpec]) -> Vec<WindowSum>;

    /// Returns what has ended at this broker in each minute.
    fn series(&self, namespace: &Namespace) -> EndSeries;

    /// Returns what operators did in a namespace through this broker.
    fn actions(&self, namespace: &Namespace) -> ActionList;

    /// Waits for deliveries of a queue at the local hub.
    fn poll(
        &self,
        options: PollOptions,
    ) -> impl Future<Output = Result<Vec<Polled>, PeerError>> + Send;

    /// Takes settlements of a worker. Returns one result per settlement, in order.
    fn settle(
        &self,
        scope: SettleScope<'_>,
        settlements: Vec<(LeaseToken, Settlement)>,
    ) -> Result<Vec<SettleResult>, PeerError>;
}

/// Creates the server, to be mounted beside the public API.
pub(crate) fn server<H: LocalBroker>(
    local: Arc<H>,
    secret: Secret,
) -> InterceptedService<PeersServer<PeerApi<H>>, RequireSecret> {
    let server = PeersServer::new(PeerApi { local, interner: Interner::default() })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    InterceptedService::new(server, RequireSecret(secret))
}

/// Refuses calls without the secret of the cluster, before their message is decoded.
#[derive(Debug, Clone)]
pub(crate) struct RequireSecret(Secret);

impl Interceptor for RequireSecret {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let mut authorization = request.metadata().get_all("authorization").iter();
        // More than one header is ambiguous.
        match (authorization.next(), authorization.next()) {
            (Some(authorization), None) if self.0.matches(authorization) => Ok(request),
            _ => Err(Status::unauthenticated("the secret of the cluster is required")),
        }
    }
}

/// Decodes calls of peers and encodes the answers.
#[derive(Debug)]
pub(crate) struct PeerApi<H> {
    local: Arc<H>,
    interner: Interner,
}

type Pieces<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl<H: LocalBroker> Peers for PeerApi<H> {
    type ForwardStream = Pieces<v1::ForwardReplies>;

    async fn forward(
        &self,
        request: Request<v1::ForwardRequest>,
    ) -> Result<Response<Self::ForwardStream>, Status> {
        let v1::ForwardRequest { partition, commands } = request.into_inner();
        let partition = partition_of(partition)?;
        let commands = wire::read_commands(&commands, &self.interner).map_err(not_understood)?;
        let answers = self.local.call(partition, commands).await.map_err(PeerError::into_status)?;
        let pieces = tokio_stream::iter(wire::answer_pieces(answers));
        let pieces = pieces.map(|piece| Ok(v1::ForwardReplies { replies: piece.into() }));
        Ok(Response::new(Box::pin(pieces)))
    }

    async fn hand_over(
        &self,
        request: Request<v1::HandOverRequest>,
    ) -> Result<Response<v1::HandOverReply>, Status> {
        let v1::HandOverRequest { partition, epoch, in_flight } = request.into_inner();
        let partition = partition_of(partition)?;
        let epoch = Epoch::new(epoch).ok_or_else(|| Status::invalid_argument("invalid epoch"))?;
        let in_flight = wire::read_in_flight(&in_flight).map_err(not_understood)?;
        let local = Arc::clone(&self.local);
        // The take-over must complete even if the peer hangs up.
        let taking = tokio::spawn(async move { local.take(partition, epoch, in_flight).await });
        let taken = taking.await.map_err(|_| Status::unknown("the take-over did not finish"))?;
        let epoch = taken.map_err(PeerError::into_status)?;
        Ok(Response::new(v1::HandOverReply { epoch: epoch.get() }))
    }

    async fn report(
        &self,
        request: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportReply>, Status> {
        let v1::ReportRequest { partition, reports } = request.into_inner();
        let partition = partition_of(partition)?;
        let reports = wire::read_reports(&reports).map_err(not_understood)?;
        self.local.report(partition, reports).map_err(PeerError::into_status)?;
        Ok(Response::new(v1::ReportReply {}))
    }

    async fn gauge(
        &self,
        request: Request<v1::GaugeRequest>,
    ) -> Result<Response<v1::GaugeReply>, Status> {
        let v1::GaugeRequest { namespace } = request.into_inner();
        let namespace = namespace.as_deref().map(namespace_of).transpose()?;
        let gauges = self.local.gauges(namespace).await.map_err(PeerError::into_status)?;
        Ok(Response::new(v1::GaugeReply { gauges: wire::put_gauges(&gauges).into() }))
    }

    async fn view(
        &self,
        request: Request<v1::ViewRequest>,
    ) -> Result<Response<v1::ViewReply>, Status> {
        let query = view::read_query(request.into_inner()).map_err(invalid)?;
        let view = self.local.view(query).await.map_err(PeerError::into_status)?;
        Ok(Response::new(view::put_view(&view)))
    }

    async fn measure(
        &self,
        request: Request<v1::MeasureRequest>,
    ) -> Result<Response<v1::MeasureReply>, Status> {
        let windows = measure::read_windows(request.into_inner()).map_err(invalid)?;
        Ok(Response::new(measure::put_sums(&self.local.measure(&windows))))
    }

    async fn series(
        &self,
        request: Request<v1::SeriesRequest>,
    ) -> Result<Response<v1::SeriesReply>, Status> {
        let namespace = namespace_of(&request.into_inner().namespace)?;
        Ok(Response::new(measure::put_series(&self.local.series(&namespace))))
    }

    async fn actions(
        &self,
        request: Request<v1::PeerActionsRequest>,
    ) -> Result<Response<v1::ActionsReply>, Status> {
        let namespace = namespace_of(&request.into_inner().namespace)?;
        Ok(Response::new(actions::put_actions(self.local.actions(&namespace))))
    }

    type PollStream = Pieces<v1::PollReply>;

    async fn poll(
        &self,
        request: Request<v1::PollRequest>,
    ) -> Result<Response<Self::PollStream>, Status> {
        let v1::PollRequest { namespace, queue, max, wait_ms, lease_ms, worker, address } =
            request.into_inner();
        let namespace = namespace_of(&namespace)?;
        let queue = Queue::new(&queue).map_err(invalid)?;
        let max = usize::try_from(max).unwrap_or(usize::MAX).min(wire::DELIVERIES_MAX);
        let wait = Duration::from_millis(wait_ms).min(WAIT_MAX);
        let lease = lease_ms.map(|lease| Duration::from_millis(lease).min(TIMEOUT_MAX));
        let label = WorkerLabel::new(&worker, &address);
        let options = PollOptions { namespace, queue, max, wait, lease, label };
        let polled = self.local.poll(options).await;
        let pieces = wire::delivery_pieces(polled.map_err(PeerError::into_status)?);
        let pieces =
            tokio_stream::iter(pieces).map(|piece| Ok(v1::PollReply { deliveries: piece.into() }));
        Ok(Response::new(Box::pin(pieces)))
    }

    async fn settle(
        &self,
        request: Request<v1::SettleRequest>,
    ) -> Result<Response<v1::SettleReply>, Status> {
        let v1::SettleRequest { namespace, settlements, queue } = request.into_inner();
        let namespace = namespace_of(&namespace)?;
        // A peer of an older version does not send the queue.
        let queue = (!queue.is_empty()).then(|| Queue::new(&queue)).transpose().map_err(invalid)?;
        let scope = SettleScope { namespace: &namespace, queue: queue.as_ref() };
        let settlements = wire::read_settlements(&settlements).map_err(not_understood)?;
        let results = self.local.settle(scope, settlements).map_err(PeerError::into_status)?;
        Ok(Response::new(v1::SettleReply { results: wire::put_settle_results(&results).into() }))
    }
}

fn partition_of(number: u32) -> Result<PartitionId, Status> {
    let partition = u16::try_from(number).ok().and_then(PartitionId::new);
    partition.ok_or_else(|| Status::invalid_argument("partition number out of range"))
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
