//! The state that all requests to a broker share.
//!
//! `startup` creates it, and every route of `api` gets a reference to it. Requests are answered by
//! the owner of their partition, which `routing` finds.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use punctual_connectors::{SinkCourier, SourceState, SourceStatus};
use tokio::sync::{mpsc, watch};

use crate::actions::Actions;
use crate::api::limits::ApiLimits;
use crate::api::live_feeds::LiveFeeds;
use crate::api::operation_list::Operations;
use crate::auth::ApiTokens;
use crate::browser::BrowserPolicy;
use crate::clock::SystemClock;
use crate::courier::{Guard, Hub};
use crate::membership::Membership;
use crate::peer::{Peers, Secret};
use crate::routing::Owners;
use crate::store::Store;
use crate::telemetry::Telemetry;
use crate::tls::Tls;

/// What the API needs to answer requests.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) owners: Arc<Owners>,
    /// For reads only: every change is made by an owner.
    pub(crate) store: Arc<Store>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) tokens: ApiTokens,
    /// What namespaces share at the API.
    pub(crate) limits: Arc<ApiLimits>,
    /// Operations that this broker has taken.
    pub(crate) operations: Operations,
    /// What operators did through this broker.
    pub(crate) actions: Arc<Actions>,
    /// What happens, once a second, for those who listen.
    pub(crate) live: LiveFeeds,
    pub(crate) browser_policy: BrowserPolicy,
    /// Which addresses webhooks may call.
    pub(crate) guard: Guard,
    pub(crate) tls: Option<Tls>,
    /// Whether it has a mail server; without one, alarms cannot be reported by mail.
    pub(crate) sends_mail: bool,
    /// The connections of the configuration.
    pub(crate) sinks: Arc<SinkCourier>,
    /// Set once the sources have started.
    pub(crate) sources: OnceLock<Vec<Arc<SourceStatus>>>,
    pub(crate) telemetry: Telemetry,
    /// The address that it listens on.
    pub(crate) address: SocketAddr,
    /// `None` if this broker shares its store with no other.
    pub(crate) cluster: Option<ClusterParts>,
    /// Becomes true when the broker accepts no new work; streams then finish and end.
    pub(crate) draining: watch::Receiver<bool>,
    /// Closes when the last reference to the broker is dropped.
    pub(crate) _alive: mpsc::Sender<()>,
}

/// What a broker of a cluster has in addition.
#[derive(Debug)]
pub(crate) struct ClusterParts {
    pub(crate) membership: Arc<Membership>,
    pub(crate) peers: Arc<Peers>,
    /// Authenticates calls between brokers.
    pub(crate) secret: Secret,
}

impl Broker {
    /// What the sources of the configuration do.
    pub(crate) fn source_states(&self) -> Vec<SourceState> {
        let sources = self.sources.get().map_or(&[][..], Vec::as_slice);
        sources.iter().map(|source| source.state()).collect()
    }

    /// Returns whether the broker has stopped accepting new work.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}
