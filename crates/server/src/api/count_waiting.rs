//! Counts the due tasks of each target in the store, up to [`COUNTED_MAX`]: owners know how many
//! wait in memory, and only whether more wait in the store.

use std::collections::HashMap;

use punctual_core::{Clock as _, Namespace, TaskState};
use punctual_engine::LaneTarget;
use punctual_store::{Filter, Position, StoreError, TaskStore as _};

use crate::broker::Broker;

/// Due tasks that are read: some tens of milliseconds.
const COUNTED_MAX: usize = 10_000;
/// Tasks in one read.
const READ: usize = 1_000;

/// Returns the counts, and whether all due tasks were counted.
pub(crate) async fn count_waiting(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<(HashMap<LaneTarget, usize>, bool), StoreError> {
    let mut filter = Filter::all(namespace.clone());
    filter.state = Some(TaskState::Scheduled);
    filter.to = broker.clock.now();
    let (mut counted, mut read) = (HashMap::new(), 0);
    for partition in broker.owners.partitions().iter() {
        let mut after = Some(Position::START);
        while let Some(position) = after {
            if read >= COUNTED_MAX {
                return Ok((counted, false));
            }
            let page = broker.store.list(partition, &filter, position, READ).await?;
            read += page.items.len().max(1);
            for task in &page.items {
                *counted.entry(LaneTarget::of(&task.definition.target)).or_default() += 1;
            }
            after = page.next;
        }
    }
    Ok((counted, true))
}
