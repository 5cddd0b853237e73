//! What a broker says about a caller: its rights, and which broker it speaks to.
//!
//! HTTP and gRPC render it. A page or a program asks once, and then offers only what its token
//! grants; every call is checked again.

use punctual_core::{Clock as _, Namespace, Timestamp};

use crate::auth::{Identity, Rights};
use crate::broker::Broker;
use crate::view_namespace::address_of;

/// The version of the broker.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A caller, and the broker that it has called.
#[derive(Debug)]
pub(crate) struct CallerInfo<'a> {
    /// Whether the broker has tokens; without any, every caller is an admin.
    pub(crate) tokens: bool,
    pub(crate) admin: bool,
    /// The rights of the caller by namespace; empty for an admin.
    pub(crate) namespaces: &'a [(Namespace, Rights)],
    /// The address of the broker.
    pub(crate) broker: String,
    /// The name of the cluster; `None` if the broker shares its store with no other.
    pub(crate) cluster: Option<&'a str>,
    /// The kind of the store.
    pub(crate) store: &'static str,
    pub(crate) time: Timestamp,
}

impl<'a> CallerInfo<'a> {
    pub(crate) fn of(broker: &'a Broker, identity: &'a Identity) -> Self {
        let namespaces = match identity {
            Identity::Admin => &[],
            Identity::Namespaces(namespaces) => namespaces.as_slice(),
        };
        Self {
            tokens: !broker.tokens.is_open(),
            admin: *identity == Identity::Admin,
            namespaces,
            broker: address_of(broker),
            cluster: broker.store.cluster(),
            store: broker.store.kind(),
            time: broker.clock.now(),
        }
    }
}
