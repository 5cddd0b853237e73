//! Inventory: the namespaces and the number of partitions of a store, for an export of everything.

use std::path::Path;

use punctual_core::{Namespace, PartitionId, Partitions};
use punctual_store::StoreError;

use crate::open::directory::{Directory, EmbeddedOpenError};
use crate::state::partition::stored_name;
use crate::store::EmbeddedStore;

impl EmbeddedStore {
    /// All namespaces that a partition has ever had tasks of, those of receipts included, in order.
    pub fn all_namespaces(&self, partition: PartitionId) -> Result<Vec<Namespace>, StoreError> {
        self.core.check_partition(partition)?;
        let state = self.core.state()?;
        state.partition(partition).counts.keys().map(|name| stored_name(name)).collect()
    }

    /// The number of partitions of the store in a directory. Fails while a process has it open, and
    /// if there is none.
    pub fn partitions_in(dir: &Path) -> Result<Partitions, EmbeddedOpenError> {
        Ok(Directory::take_existing(dir)?.partitions)
    }
}
