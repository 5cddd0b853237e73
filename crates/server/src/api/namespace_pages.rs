//! Reads pages of namespaces with their counts from all partitions, for HTTP and gRPC.
//!
//! Pages come from the store, in the order of names; the counts of a namespace are added up over
//! its partitions. Internal namespaces are left out here. The cursor of a page is opaque text; both
//! protocols use the same.

use std::sync::Arc;

use punctual_core::Namespace;
use punctual_store::{CountedNamespace, Page, TaskStore as _};

use super::limits::admin_share;
use super::merge_pages::{SortBy, merge};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::shares::SharePermit;

/// The beginning of cursors, which tells them from those of other lists and from namespaces.
const NAMESPACES: &str = "n:";
/// About how many bytes a namespace takes in a response.
const WEIGHT: usize = 256;

/// Returns a page of namespaces, and the permit to keep until it was sent.
pub(crate) async fn namespace_page(
    broker: &Broker,
    after: Option<Namespace>,
    limit: usize,
) -> Result<(Page<CountedNamespace, Namespace>, SharePermit), Problem> {
    let permit = broker.limits.reads.acquire(&admin_share()?).await?;
    let sort_by = SortBy {
        position: |counted: &CountedNamespace| counted.name.clone(),
        weight: |_| WEIGHT,
        join: Some(|one, other| one.counts.add(other.counts)),
    };
    let fetch = |partition, after: Option<Namespace>, limit| {
        let store = Arc::clone(&broker.store);
        async move {
            let mut page = store.namespaces(partition, after.as_ref(), limit).await?;
            page.items.retain(|counted| is_listed(&counted.name));
            Ok(page)
        }
    };
    let page = merge(broker.owners.partitions(), after, limit, &sort_by, fetch).await?;
    Ok((page, permit))
}

/// Whether callers may see a namespace: those of the broker itself are internal.
fn is_listed(namespace: &Namespace) -> bool {
    !namespace.is_internal()
}

/// Returns the cursor of the page after this namespace, which may be an internal one.
pub(crate) fn after_namespace(namespace: &Namespace) -> String {
    format!("{NAMESPACES}{namespace}")
}

/// Parses a cursor of a list of namespaces.
pub(crate) fn parse_cursor(cursor: &str) -> Result<Namespace, Problem> {
    let name = cursor.strip_prefix(NAMESPACES);
    name.and_then(|name| Namespace::from_stored(name).ok()).ok_or_else(|| {
        let detail = "cursor must be the `next` of an earlier page of this list";
        Problem::invalid_request(detail, Some("cursor".to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_anything_else_is_refused() {
        let shop = Namespace::new("shop").unwrap();
        for namespace in [shop.clone(), shop.of_receipts()] {
            assert_eq!(parse_cursor(&after_namespace(&namespace)).ok(), Some(namespace));
        }
        for text in ["", "n", "n:", "shop", "nshop", "n: ", "n:a b", "t:shop"] {
            assert!(parse_cursor(text).is_err(), "{text:?}");
        }
        assert!(Namespace::new(&after_namespace(&shop)).is_err(), "it takes no namespace's share");
    }
}
