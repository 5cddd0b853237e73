//! Reads what a store was created with and which namespaces it has, for exports and imports, which
//! do not know the names.

use std::collections::BTreeSet;
use std::sync::Arc;

use punctual_core::{Namespace, PartitionId, Partitions};
use punctual_store::StoreError;

use crate::error::RedisOpenError;
use crate::format::keys;
use crate::options::RedisOptions;
use crate::store::RedisStore;
use crate::transport::connection::{RedisAddress, RedisConnection, RedisKind};
use crate::transport::reply;

impl RedisStore {
    /// Returns the namespaces that a partition ever had tasks of, including those of receipts, in
    /// order.
    ///
    /// Reads all counts, and not the set of namespaces: an earlier version did not write that.
    pub async fn all_namespaces(
        &self,
        partition: PartitionId,
    ) -> Result<Vec<Namespace>, StoreError> {
        let counts = &self.keys(partition)?.counts;
        let mut command = redis::cmd("HKEYS");
        command.arg(counts);
        let mut names = BTreeSet::new();
        for field in reply::array(self.reads.command(command, counts).await?)? {
            let field = reply::bytes(field)?;
            let name = field.split(|byte| *byte == 0).next().unwrap_or_default();
            // The size of history has no namespace.
            if !name.is_empty() {
                let name = std::str::from_utf8(name).ok();
                let name = name.and_then(|name| Namespace::from_stored(name).ok());
                let damaged =
                    || self.damage.found("a count", counts, &field, "it has no namespace");
                names.insert(name.ok_or_else(damaged)?);
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Returns the number of partitions that a cluster was created with, or `None` if it does not
    /// exist. Creates nothing.
    pub async fn partitions_in(
        options: &RedisOptions,
    ) -> Result<Option<Partitions>, RedisOpenError> {
        if let Some(fault) = keys::fault_of_name(&options.cluster) {
            return Err(RedisOpenError::Options(format!("the cluster name {fault}")));
        }
        let meta = keys::meta(&options.cluster);
        let read = async |kind| -> Result<_, RedisOpenError> {
            let connection = RedisConnection::new(Arc::new(RedisAddress::new(options, kind)?));
            let mut command = redis::cmd("HGET");
            command.arg(&meta).arg("partitions");
            Ok(connection.command(command, &meta).await?)
        };
        // A Redis Cluster may redirect a client of a single server; then connect as to a Cluster.
        let made = match read(RedisKind::Single).await {
            Ok(made) => made,
            Err(_) => read(RedisKind::Cluster).await?,
        };
        let Some(made) = reply::optional_bytes(made)? else { return Ok(None) };
        let count = std::str::from_utf8(&made).ok().and_then(|made| made.parse().ok());
        let partitions = count.and_then(|count| Partitions::new(count).ok());
        Ok(Some(partitions.ok_or_else(|| reply::unexpected("a number of partitions"))?))
    }
}
