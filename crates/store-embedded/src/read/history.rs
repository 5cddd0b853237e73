//! History: the newest records of one task, from memory and from the runs of history.

use punctual_core::{FireRecord, TaskId};
use punctual_store::codec::read_record;

use crate::fault::{ReadContext, StorageFault};
use crate::state::history::read_of_task;
use crate::store_core::StoreCore;

impl StoreCore {
    /// At most `limit` records of a task, the newest first.
    pub(crate) fn history(
        &self,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StorageFault> {
        let (mut found, runs) = self.state()?.history.find(id);
        for run in runs {
            for (nominal_at, record) in read_of_task(&self.files, &run, id)? {
                found.entry(nominal_at).or_insert(record);
            }
        }
        let newest = found.into_values().rev().take(limit);
        newest
            .map(|record| read_record(&record, &self.interner).reading("record of a fire"))
            .collect()
    }
}
