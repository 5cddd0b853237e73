//! Inventory: the namespaces and the number of partitions of a store, for an export of everything.

use std::path::Path;

use punctual_core::{Namespace, PartitionId, Partitions};
use punctual_store::StoreError;

use crate::open::directory::{Directory, EmbeddedOpenError};
use crate::store::EmbeddedStore;

impl EmbeddedStore {
    /// All namespaces that a partition has ever had tasks of, those of receipts included, in order.
    pub fn namespaces(&self, partition: PartitionId) -> Result<Vec<Namespace>, StoreError> {
        self.core.check_partition(partition)?;
        let state = self.core.state()?;
        let names = state.partition(partition).counts.keys();
        let read = |name: &String| {
            Namespace::from_stored(name).map_err(|_| {
                StoreError::Broken(format!("the stored name {name:?} is not a valid namespace"))
            })
        };
        let mut namespaces = names.map(read).collect::<Result<Vec<_>, _>>()?;
        namespaces.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        Ok(namespaces)
    }

    /// The number of partitions of the store in a directory. Fails while a process has it open, and
    /// if there is none.
    pub fn partitions_in(dir: &Path) -> Result<Partitions, EmbeddedOpenError> {
        Ok(Directory::take_existing(dir)?.partitions)
    }
}
