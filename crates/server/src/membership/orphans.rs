//! Orphan reports: reports of deliveries whose owner has moved to another broker.
//!
//! An owner that ends while deliveries are in flight leaves their reports without a receiver. This
//! file passes each report to the present owner of the partition, and tries for at most
//! [`ORPHAN_FORWARD_MAX`]. Without a report, the present owner settles the delivery as expired when
//! its time is over.

use std::sync::Arc;

use punctual_cluster::{ORPHAN_FORWARD_MAX, ORPHAN_RETRY_EVERY};
use punctual_core::Seat;
use punctual_engine::OrphanReport;
use punctual_store::LeaseStore as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::routing::Owners;
use crate::store::Store;

/// Forwards orphan reports until no sender of them is left and all have been forwarded.
pub(crate) async fn forward_orphan_reports(
    owners: Arc<Owners>,
    store: Arc<Store>,
    mut orphans: mpsc::UnboundedReceiver<OrphanReport>,
) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            orphan = orphans.recv() => match orphan {
                Some(orphan) => {
                    _ = tasks.spawn(forward(Arc::clone(&owners), Arc::clone(&store), orphan));
                }
                None => break,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Passes reports to the present owner of their partition, as soon as there is one.
async fn forward(
    owners: Arc<Owners>,
    store: Arc<Store>,
    OrphanReport { partition, reports }: OrphanReport,
) {
    let Some(mut changes) = owners.changes() else { return };
    let forwarding = async {
        while !owners.report(partition, &reports).await {
            let _ = timeout(ORPHAN_RETRY_EVERY, changes.changed()).await;
            // A broker that has left gets no new topology, so it reads the lease itself.
            if let Ok(Some(lease)) = store.holder(Seat::Partition(partition)).await {
                owners.learn_owner(partition, lease.broker, lease.epoch);
            }
        }
    };
    if timeout(ORPHAN_FORWARD_MAX, forwarding).await.is_err() {
        let count = reports.len();
        tracing::warn!(%partition, count, "orphan reports dropped: the partition has no owner");
    }
}
