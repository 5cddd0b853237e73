//! The `Namespaces` call: a page of namespaces with their counts.
//!
//! `api/namespace_pages` reads the page. `auth` requires an admin token for the call.

use punctual_proto::v1;
use punctual_store::{CountedNamespace, Page};

use super::reads::{Read, limit, refused};
use crate::api::namespace_pages::{after_namespace, namespace_page, parse_cursor};
use crate::broker::Broker;

pub(super) async fn list(
    broker: &Broker,
    request: &v1::NamespacesRequest,
) -> Read<v1::NamespacesResponse> {
    let cursor = Some(request.cursor.as_str()).filter(|cursor| !cursor.is_empty());
    let after = cursor.map(parse_cursor).transpose().map_err(refused)?;
    let page = namespace_page(broker, after, limit(request.limit)).await;
    let (Page { items, next }, permit) = page.map_err(refused)?;
    let namespaces = items.iter().map(namespace_info).collect();
    let next = next.as_ref().map(after_namespace).unwrap_or_default();
    Ok((v1::NamespacesResponse { namespaces, next }, permit))
}

fn namespace_info(CountedNamespace { name, counts }: &CountedNamespace) -> v1::NamespaceInfo {
    v1::NamespaceInfo {
        name: name.as_str().to_owned(),
        accepted: counts.accepted(),
        scheduled: counts.scheduled,
        paused: counts.paused,
        done: counts.done,
        dead: counts.dead,
        cancelled: counts.cancelled,
        dead_letters: counts.dead_letters,
    }
}
