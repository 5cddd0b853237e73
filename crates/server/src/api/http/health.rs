//! Health and topology: whether this broker lives, whether it can do its work, and who has which partitions.

use std::sync::Arc;

use axum::extract::State;
use punctual_cluster::ClusterView;
use punctual_core::{BrokerId, Clock as _, PartitionId};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::error::Problem;
use crate::broker::Broker;
use crate::tls::Tls;

/// Whether the process lives.
#[utoipa::path(
    get, path = "/livez", tag = "health",
    responses((status = 200, description = "it does", body = String, content_type = "text/plain"))
)]
pub(crate) async fn livez() -> &'static str {
    "alive\n"
}

#[derive(Debug, Serialize, ToSchema)]
struct Ready {
    ready: bool,
    /// Why it is not ready.
    reasons: Vec<String>,
    /// What somebody should look at although it is.
    warnings: Vec<String>,
}

/// Whether the broker can do its work; if not, why. A clock that somebody has set is a warning: the broker goes on rightly
/// without it.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses((status = 200, description = "it can", body = Ready))
)]
pub(crate) async fn readyz(State(broker): State<Arc<Broker>>) -> Answer {
    if broker.is_draining() {
        return Err(Problem::not_ready(&[
            "draining: it stops as soon as what is under way is done".to_owned(),
        ]));
    }
    let mut reasons = Vec::new();
    let mut warnings = Vec::new();
    match &broker.shared {
        None => {
            for (partition, owner) in broker.owners.handles() {
                if let Err(error) = owner.gauges(None).await {
                    reasons.push(format!("{partition}: {error}"));
                }
            }
        }
        Some(shared) => match shared.membership.standing(broker.clock.now()) {
            Ok(warning) => warnings.extend(warning),
            Err(reason) => reasons.push(reason),
        },
    }
    warnings.extend(broker.clock.doubt().map(|doubt| format!("clock_suspect: {doubt}")));
    let problem = broker.tls.as_ref().and_then(Tls::problem);
    warnings.extend(problem.map(|problem| format!("tls: {problem}")));
    if reasons.is_empty() {
        return answer::ok(&Ready { ready: true, reasons, warnings });
    }
    Err(Problem::not_ready(&reasons))
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topology)]
struct TopologyAnswer {
    leader: Option<String>,
    brokers: Vec<BrokerAnswer>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Broker)]
struct BrokerAnswer {
    address: String,
    /// By their numbers.
    partitions: Vec<u16>,
    last_heartbeat: String,
}

/// Who has which partitions.
#[utoipa::path(
    get, path = "/v1/topology", tag = "health",
    responses((status = 200, description = "all brokers", body = TopologyAnswer))
)]
pub(crate) async fn topology(State(broker): State<Arc<Broker>>) -> Answer {
    if let Some(shared) = &broker.shared {
        let view = shared.membership.view().ok_or_else(|| {
            Problem::not_ready(&["the store has not said yet who is there".to_owned()])
        })?;
        return answer::ok(&TopologyAnswer::of(&view));
    }
    // One broker on its own store leads itself, and is as alive as this answer.
    let address = broker.address.to_string();
    let partitions = broker.owners.partitions().iter().map(|partition| partition.get());
    let sole = BrokerAnswer {
        address: address.clone(),
        partitions: partitions.collect(),
        last_heartbeat: broker.clock.now().to_string(),
    };
    answer::ok(&TopologyAnswer { leader: Some(address), brokers: vec![sole] })
}

impl TopologyAnswer {
    fn of(view: &ClusterView) -> Self {
        let brokers = view.present.iter().map(|seen| BrokerAnswer {
            address: seen.broker.to_string(),
            partitions: view.topology.partitions_of(&seen.broker).map(PartitionId::get).collect(),
            last_heartbeat: seen.heard_at.to_string(),
        });
        let leader = view.topology.leader.as_ref().map(BrokerId::to_string);
        Self { leader, brokers: brokers.collect() }
    }
}
