//! Orphan reports: reports of deliveries whose owner has moved to another broker.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::Seat;
use punctual_engine::OrphanReport;
use punctual_store::LeaseStore as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::routing::Owners;
use crate::store::Store;

/// How long, and how often, what came of a delivery is told to the owner of then. Afterwards it is known as over without a word.
const STRAY_MAX: Duration = Duration::from_secs(10);
const STRAY_EVERY: Duration = Duration::from_millis(100);

/// Tells owners elsewhere what came of deliveries that they have inherited, until nobody can bring any more.
pub(crate) async fn carry_strays(
    owners: Arc<Owners>,
    store: Arc<Store>,
    mut strays: mpsc::UnboundedReceiver<OrphanReport>,
) {
    let mut carried = JoinSet::new();
    loop {
        tokio::select! {
            stray = strays.recv() => match stray {
                Some(stray) => {
                    _ = carried.spawn(carry(Arc::clone(&owners), Arc::clone(&store), stray));
                }
                None => break,
            },
            Some(_) = carried.join_next() => {}
        }
    }
    while carried.join_next().await.is_some() {}
}

/// Tells the owner of then, as soon as there is one. A broker that has left is told no more who owns what, so it asks the store.
async fn carry(
    owners: Arc<Owners>,
    store: Arc<Store>,
    OrphanReport { partition, reports }: OrphanReport,
) {
    let Some(mut changes) = owners.changes() else { return };
    let telling = async {
        while !owners.report(partition, &reports).await {
            let _ = timeout(STRAY_EVERY, changes.changed()).await;
            if let Ok(Some(lease)) = store.holder(Seat::Partition(partition)).await {
                owners.note(partition, lease.broker, lease.epoch);
            }
        }
    };
    if timeout(STRAY_MAX, telling).await.is_err() {
        let count = reports.len();
        tracing::warn!(%partition, count, "nobody to tell what came of deliveries");
    }
}
