//! The `WhoAmI` call: the rights of the caller's token, and which broker it speaks to.

use punctual_core::Namespace;
use punctual_proto::v1;

use crate::api::whoami::{CallerInfo, VERSION};
use crate::auth::{Identity, Rights};
use crate::broker::Broker;

pub(super) fn whoami(broker: &Broker, identity: &Identity) -> v1::WhoAmIResponse {
    let info = CallerInfo::of(broker, identity);
    let granted = |(namespace, rights): &(Namespace, Rights)| v1::GrantedNamespace {
        name: namespace.as_str().to_owned(),
        rights: rights.names().map(str::to_owned).collect(),
    };
    v1::WhoAmIResponse {
        tokens: info.tokens,
        admin: info.admin,
        namespaces: info.namespaces.iter().map(granted).collect(),
        broker: info.broker,
        cluster: info.cluster.unwrap_or_default().to_owned(),
        store: info.store.to_owned(),
        version: VERSION.to_owned(),
        time_ms: info.time.as_millis(),
    }
}
