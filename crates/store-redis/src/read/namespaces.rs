//! Counts of a namespace, and pages of the namespaces of a partition.
//!
//! A page reads the next names of the sorted set `namespaces` and then their counts, with one
//! command each. A count may be newer than the name. The set only grows: `apply.lua` adds a
//! namespace when one of its counts is no longer zero. If all are zero again, it is left out.

use punctual_core::Namespace;
use punctual_store::{CountedNamespace, Counts, Page, StoreError};

use crate::damage::NO_NUMBER;
use crate::format::codec;
use crate::format::keys::PartitionKeys;
use crate::store::RedisStore;
use crate::transport::reply;

/// The largest number of namespaces in one page: their counts are 6,000 small fields, about a
/// millisecond of Redis.
const NAMESPACES_MAX: usize = 1000;
/// The number of counts of a namespace.
const COUNTS: usize = 6;

impl RedisStore {
    pub(crate) async fn read_counts(
        &self,
        keys: &PartitionKeys,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        let fields = count_fields(namespace);
        let values = self.read_fields(&keys.counts, &fields).await?;
        self.decode_counts(keys, &fields, &values)
    }

    pub(crate) async fn read_namespaces(
        &self,
        keys: &PartitionKeys,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Page<CountedNamespace, Namespace>, StoreError> {
        let limit = limit.min(NAMESPACES_MAX);
        let mut after = after.map(|after| after.as_str().as_bytes().to_vec());
        loop {
            let read = self.read_names(keys, after.as_deref(), limit).await?;
            let names = read.iter().filter_map(|name| self.decode_name(keys, name));
            let names: Vec<Namespace> = names.collect();
            let is_full = read.len() == limit;
            let next = names.last().filter(|_| is_full).cloned();
            after = read.into_iter().next_back().filter(|_| is_full && next.is_none());
            // A page of damaged names only has no name at which the next one could start.
            if after.is_none() {
                return Ok(Page { items: self.with_counts(keys, names).await?, next });
            }
        }
    }

    /// Reads the counts of namespaces, and leaves out those that have none.
    async fn with_counts(
        &self,
        keys: &PartitionKeys,
        names: Vec<Namespace>,
    ) -> Result<Vec<CountedNamespace>, StoreError> {
        let fields: Vec<_> = names.iter().flat_map(count_fields).collect();
        let values = self.read_fields(&keys.counts, &fields).await?;
        let rows = fields.chunks_exact(COUNTS).zip(values.chunks_exact(COUNTS));
        let counted = names.into_iter().zip(rows).filter_map(|(name, (fields, values))| {
            // What is damaged is logged and counted.
            let counts = self.decode_counts(keys, fields, values).ok()?;
            (!counts.is_zero()).then_some(CountedNamespace { name, counts })
        });
        Ok(counted.collect())
    }

    async fn read_names(
        &self,
        keys: &PartitionKeys,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let from = after.map_or_else(|| b"-".to_vec(), |after| [b"(", after].concat());
        let mut command = redis::cmd("ZRANGEBYLEX");
        command.arg(&keys.namespaces).arg(from).arg("+").arg("LIMIT").arg(0).arg(limit);
        let names = reply::array(self.reads.command(command, &keys.namespaces).await?)?;
        names.into_iter().map(reply::bytes).collect()
    }

    fn decode_name(&self, keys: &PartitionKeys, name: &[u8]) -> Option<Namespace> {
        let decoded = std::str::from_utf8(name).ok();
        let decoded = decoded.and_then(|name| Namespace::from_stored(name).ok());
        if decoded.is_none() {
            let why = "it is not a valid namespace";
            self.damage.found("the name of a namespace", &keys.namespaces, name, why);
        }
        decoded
    }

    fn decode_counts(
        &self,
        keys: &PartitionKeys,
        fields: &[Vec<u8>],
        values: &[Option<Vec<u8>>],
    ) -> Result<Counts, StoreError> {
        let mut numbers = [0; COUNTS];
        for (number, (field, value)) in numbers.iter_mut().zip(fields.iter().zip(values)) {
            if let Some(value) = value {
                let decoded = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                *number = decoded.ok_or_else(|| {
                    self.damage.found("the count of tasks", &keys.counts, field, NO_NUMBER)
                })?;
            }
        }
        Ok(codec::counts_of(numbers))
    }
}

/// Returns the fields of the counts of a namespace.
fn count_fields(namespace: &Namespace) -> [Vec<u8>; COUNTS] {
    codec::by_letter(&Counts::default()).map(|(letter, _)| {
        let mut field = Vec::new();
        codec::put_count_field(&mut field, namespace.as_str(), letter);
        field
    })
}
