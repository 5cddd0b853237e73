//! What a broker knows of a namespace: what waits in lanes, and which workers are connected.
//! `view_namespace` asks brokers for it.

use punctual_core::{Namespace, PartitionId};
use punctual_engine::{LaneQuery, OwnerView};

use crate::courier::queue::WorkerView;

/// What is asked of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ViewQuery {
    pub(crate) namespace: Namespace,
    /// Only this partition; all that the broker owns if `None`.
    pub(crate) partition: Option<PartitionId>,
    pub(crate) lanes: LaneQuery,
}

/// What one broker knows of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NamespaceView {
    /// The lanes of all owners that were asked.
    pub(crate) owner: OwnerView,
    pub(crate) workers: Vec<WorkerView>,
    /// Why the clock of the machine is suspect, if it is.
    pub(crate) clock_suspect: Option<String>,
    /// Open connections to receivers of webhooks, of all namespaces.
    pub(crate) connections: u64,
    /// Deliveries of all namespaces that wait for a connection.
    pub(crate) connection_waits: u64,
}
