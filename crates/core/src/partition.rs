//! Partitions: fixed slices of all tasks, each with one owner at a time.
//!
//! A task with a key is in the partition that [`partition_of`] computes from namespace and key.
//! Clients, brokers and stores of all versions must agree on it, so its results never change;
//! golden values in the tests ensure that.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use crate::limits::PARTITIONS_MAX;
use crate::{Invalid, Namespace, TaskKey};

/// The number of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(u16);

impl PartitionId {
    /// The first partition, which every store has.
    pub const FIRST: Self = Self(0);

    /// Makes an id of a number below [`PARTITIONS_MAX`].
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number < PARTITIONS_MAX { Some(Self(number)) } else { None }
    }

    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The number, from 0.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// How many partitions a store has. Fixed when the store is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitions(u16);

impl Partitions {
    /// One partition.
    pub const ONE: Self = Self(1);

    /// Makes a count from 1 to [`PARTITIONS_MAX`].
    pub fn new(count: u16) -> Result<Self, Invalid> {
        if !(1..=PARTITIONS_MAX).contains(&count) {
            let problem = format!("must be from 1 to {PARTITIONS_MAX}, is {count}");
            return Err(Invalid::new("partitions", problem));
        }
        Ok(Self(count))
    }

    /// The count as a number.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.0
    }

    /// The ids of all partitions, in order.
    pub fn iter(self) -> impl Iterator<Item = PartitionId> {
        (0..self.0).map(PartitionId)
    }
}

/// The partition of a task with a key: XXH3 (64 bits, seed 0) over namespace, a zero byte and key,
/// modulo the count. No namespace contains a zero byte, so different pairs give different input.
/// All alarms and their notices are in the first partition, so that one broker evaluates them.
#[must_use]
pub fn partition_of(namespace: &Namespace, key: &TaskKey, partitions: Partitions) -> PartitionId {
    if namespace.is_in_first_partition() {
        return PartitionId::FIRST;
    }
    let mut name = Vec::with_capacity(namespace.as_str().len() + 1 + key.as_str().len());
    name.extend_from_slice(namespace.as_str().as_bytes());
    name.push(0);
    name.extend_from_slice(key.as_str().as_bytes());
    let index = xxh3_64(&name) % u64::from(partitions.0);
    PartitionId(u16::try_from(index).expect("below a u16 count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(namespace: &str, key: &str, count: u16) -> u16 {
        let (namespace, key) = (Namespace::new(namespace).unwrap(), TaskKey::new(key).unwrap());
        partition_of(&namespace, &key, Partitions::new(count).unwrap()).get()
    }

    /// The values come from another implementation of XXH3. If this fails, tasks with keys cannot
    /// be found any more in existing stores.
    #[test]
    fn the_partition_of_a_key_never_changes() {
        for (namespace, key, of_64, of_4096) in GOLDEN {
            assert_eq!(partition(namespace, key, 64), of_64, "{namespace}/{key}");
            assert_eq!(partition(namespace, key, 4096), of_4096, "{namespace}/{key}");
            assert_eq!(partition(namespace, key, 1), 0);
        }
    }

    #[test]
    fn alarms_and_notices_are_in_the_first_partition() {
        let partitions = Partitions::new(4096).unwrap();
        let notices = Namespace::new("shop").unwrap().of_notices();
        for namespace in [Namespace::of_alarms(), notices.of_receipts(), notices] {
            for key in ["shop/errors", "shop/lag"] {
                let partition = partition_of(&namespace, &TaskKey::new(key).unwrap(), partitions);
                assert_eq!(partition, PartitionId::FIRST);
            }
        }
    }

    const GOLDEN: [(&str, &str, u16, u16); 4] = [
        ("shop", "order-1", 21, 3221),
        ("shop", "order-2", 62, 4030),
        ("shop2", "order-1", 29, 3229),
        ("devices", "halle 3/Ω", 58, 2490),
    ];

    #[test]
    fn keys_are_spread_evenly_over_partitions() {
        let mut counts = [0u32; 16];
        for i in 0..16_000 {
            counts[usize::from(partition("shop", &format!("order-{i}"), 16))] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_number_of_partitions_is_limited() {
        assert!(Partitions::new(0).is_err());
        assert!(Partitions::new(4096).is_ok());
        assert!(Partitions::new(4097).is_err());
        assert_eq!(PartitionId::new(4096), None);
        assert_eq!(Partitions::new(3).unwrap().iter().count(), 3);
    }
}
