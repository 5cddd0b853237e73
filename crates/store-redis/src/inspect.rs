//! A census: what a store was made with, and whose tasks it has had. For whoever moves everything, and cannot know names.

use std::collections::BTreeSet;
use std::sync::Arc;

use punctual_core::{Namespace, PartitionId, Partitions};
use punctual_store::StoreError;

use crate::connection::{RedisAddress, RedisConnection, RedisKind};
use crate::error::RedisOpenError;
use crate::keys;
use crate::options::RedisOptions;
use crate::reply;
use crate::store::RedisStore;

impl RedisStore {
    /// Namespaces that a partition has ever had tasks of, those of receipts included, in order.
    pub async fn namespaces(&self, partition: PartitionId) -> Result<Vec<Namespace>, StoreError> {
        let counts = &self.keys(partition)?.counts;
        let mut command = redis::cmd("HKEYS");
        command.arg(counts);
        let mut names = BTreeSet::new();
        for field in reply::array(self.reads.command(command, counts).await?)? {
            let name = reply::text(&field)?.split('\0').next().unwrap_or_default();
            // The sizes of other things have no namespace.
            if !name.is_empty() {
                names.insert(name.to_owned());
            }
        }
        let read = |name: &String| {
            Namespace::from_stored(name).map_err(|_| reply::unexpected("the name of a namespace"))
        };
        names.iter().map(read).collect()
    }

    /// How many partitions a cluster was made with, if it was made. Makes nothing.
    pub async fn partitions_in(
        options: &RedisOptions,
    ) -> Result<Option<Partitions>, RedisOpenError> {
        if let Some(fault) = keys::fault_of_name(&options.cluster) {
            return Err(RedisOpenError::Options(format!("the cluster's name {fault}")));
        }
        let meta = keys::meta(&options.cluster);
        let ask = async |kind| -> Result<_, RedisOpenError> {
            let link = RedisConnection::new(Arc::new(RedisAddress::new(options, kind)?));
            let mut command = redis::cmd("HGET");
            command.arg(&meta).arg("partitions");
            Ok(link.command(command, &meta).await?)
        };
        // A Redis Cluster sends a plain client elsewhere; asked as one, it answers.
        let made = match ask(RedisKind::Single).await {
            Ok(made) => made,
            Err(_) => ask(RedisKind::Cluster).await?,
        };
        let Some(made) = reply::option(made)? else { return Ok(None) };
        let count = std::str::from_utf8(&made).ok().and_then(|made| made.parse().ok());
        let partitions = count.and_then(|count| Partitions::new(count).ok());
        Ok(Some(partitions.ok_or_else(|| reply::unexpected("a number of partitions"))?))
    }
}
