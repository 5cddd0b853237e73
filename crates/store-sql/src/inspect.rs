//! What tools and guards ask of a store: its namespaces, and where its servers are.

use punctual_core::{Namespace, PartitionId};
use punctual_store::{StoreError, TaskStore as _};

use crate::database::SqlDatabase;
use crate::store::SqlStore;

/// Namespaces of one read.
const NAMESPACES_PAGE: usize = 1000;

impl<D: SqlDatabase> SqlStore<D> {
    /// Lists the namespaces of which a count is not zero in a partition.
    pub async fn all_namespaces(
        &self,
        partition: PartitionId,
    ) -> Result<Vec<Namespace>, StoreError> {
        let mut names = Vec::new();
        let mut after: Option<Namespace> = None;
        loop {
            let page = self.namespaces(partition, after.as_ref(), NAMESPACES_PAGE).await?;
            names.extend(page.items.into_iter().map(|counted| counted.name));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(names),
            }
        }
    }

    /// Returns host and port of the servers of the options.
    pub fn configured_servers(&self) -> impl Iterator<Item = (&str, u16)> {
        self.hosts.iter().map(|host| (host.host.as_str(), host.port))
    }
}
