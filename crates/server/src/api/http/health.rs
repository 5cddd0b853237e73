//! Health and topology: whether this broker runs, whether it is ready, and which broker owns which
//! partitions.

use std::sync::Arc;

use axum::extract::State;
use punctual_cluster::ClusterView;
use punctual_core::{BrokerId, Clock as _, PartitionId};
use punctual_engine::EngineError;
use serde::Serialize;
use utoipa::ToSchema;

use super::response::{self, ApiResult};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::task_form::InstantText;
use crate::tls::Tls;

/// Check that the process runs
#[utoipa::path(
    get, path = "/livez", tag = "health",
    responses((
        status = 200, description = "The process runs.",
        body = String, content_type = "text/plain",
    ))
)]
pub(crate) async fn livez() -> &'static str {
    "alive\n"
}

/// Whether the broker is ready.
#[derive(Debug, Serialize, ToSchema)]
struct Ready {
    /// Always `true`; a broker that is not ready answers 503 with its reasons.
    ready: bool,
    /// Always empty.
    reasons: Vec<String>,
    /// What an operator should check although the broker is ready.
    warnings: Vec<String>,
}

/// Check that the broker is ready
///
/// A broker that cannot do its work answers 503 with the reasons. A machine clock that was set is
/// only a warning: the broker measures time without it.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses((status = 200, description = "The broker is ready.", body = Ready))
)]
pub(crate) async fn readyz(State(broker): State<Arc<Broker>>) -> ApiResult {
    if broker.is_draining() {
        return Err(Problem::not_ready(&[
            "draining: the broker stops when everything in flight has ended".to_owned(),
        ]));
    }
    let mut reasons = Vec::new();
    let mut warnings = Vec::new();
    match &broker.cluster {
        None => {
            for partition in broker.owners.partitions().iter() {
                let gauges = match broker.owners.handle(partition) {
                    Some(owner) => owner.gauges(None).await,
                    None => Err(EngineError::Stopped),
                };
                if let Err(error) = gauges {
                    reasons.push(format!("{partition}: {error}"));
                }
            }
        }
        Some(shared) => match shared.membership.readiness(broker.clock.now()) {
            Ok(warning) => warnings.extend(warning),
            Err(reason) => reasons.push(reason),
        },
    }
    warnings.extend(broker.clock.suspicion().map(|why| format!("clock_suspect: {why}")));
    let problem = broker.tls.as_ref().and_then(Tls::problem);
    warnings.extend(problem.map(|problem| format!("tls: {problem}")));
    if reasons.is_empty() {
        return response::ok(&Ready { ready: true, reasons, warnings });
    }
    Err(Problem::not_ready(&reasons))
}

/// The brokers of a cluster and their partitions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topology)]
pub(crate) struct TopologyAnswer {
    /// The address of the leader; `null` while there is none.
    leader: Option<String>,
    /// All brokers that are alive.
    brokers: Vec<BrokerAnswer>,
}

/// One broker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Broker)]
struct BrokerAnswer {
    /// `HOST:PORT`, where other brokers reach it.
    address: String,
    /// The numbers of the partitions it owns.
    partitions: Vec<u16>,
    /// When its last heartbeat was seen.
    #[schema(value_type = InstantText)]
    last_heartbeat: String,
    /// How far its clock is ahead of the store's, in milliseconds. Only of brokers of a cluster,
    /// once it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_ahead_ms: Option<i64>,
}

/// Show the topology
///
/// Shows all brokers and the partitions that each of them owns.
#[utoipa::path(
    get, path = "/v1/topology", tag = "health",
    responses((status = 200, description = "All brokers.", body = TopologyAnswer))
)]
pub(crate) async fn topology(State(broker): State<Arc<Broker>>) -> ApiResult {
    let topology = TopologyAnswer::now(&broker).ok_or_else(|| {
        Problem::not_ready(&[
            "the brokers of the cluster have not been read from the store yet".to_owned()
        ])
    })?;
    response::ok(&topology)
}

impl TopologyAnswer {
    /// The present topology; `None` if the brokers of the cluster are not known yet.
    pub(crate) fn now(broker: &Broker) -> Option<Self> {
        if let Some(shared) = &broker.cluster {
            return shared.membership.view().map(|view| Self::of(&view));
        }
        // A single broker leads itself, and this response is its heartbeat.
        let address = broker.address.to_string();
        let partitions = broker.owners.handles().into_iter().map(|(partition, _)| partition.get());
        let sole = BrokerAnswer {
            address: address.clone(),
            partitions: partitions.collect(),
            last_heartbeat: broker.clock.now().to_string(),
            clock_ahead_ms: None,
        };
        Some(Self { leader: Some(address), brokers: vec![sole] })
    }

    fn of(view: &ClusterView) -> Self {
        let brokers = view.present.iter().map(|seen| BrokerAnswer {
            address: seen.broker.to_string(),
            partitions: view.topology.partitions_of(&seen.broker).map(PartitionId::get).collect(),
            last_heartbeat: seen.heard_at.to_string(),
            clock_ahead_ms: seen.ahead_ms,
        });
        let leader = view.topology.leader.as_ref().map(BrokerId::to_string);
        Self { leader, brokers: brokers.collect() }
    }
}
