//! A filter that says whether an index may have a fire or a key, from memory.
//!
//! A Bloom filter: about one of forty wrong values passes, and no right one is refused. It takes
//! one byte of memory for each fire and for each key.

use punctual_core::{FireId, PartitionId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bits for each value.
const BITS_EACH: usize = 8;
/// Bits that each value sets.
const PROBES: u64 = 4;

/// The hash of a key, in filters of indexes and in memory.
pub(crate) fn key_hash(partition: PartitionId, namespace: &str, key: &str) -> u64 {
    let seed = xxh3_64_with_seed(namespace.as_bytes(), u64::from(partition.get()));
    xxh3_64_with_seed(key.as_bytes(), seed)
}

/// The hash of a fire.
pub(crate) fn fire_hash(fire_id: FireId) -> u64 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&fire_id.task.as_u128().to_be_bytes());
    bytes[16..].copy_from_slice(&fire_id.nominal_at.as_millis().to_be_bytes());
    xxh3_64(&bytes)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexFilter(Vec<u8>);

impl IndexFilter {
    pub(super) fn new(values: usize) -> Self {
        Self(vec![0; (values * BITS_EACH).div_ceil(8).max(1)])
    }

    pub(super) const fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn add(&mut self, hash: u64) {
        for (byte, mask) in probes(hash, self.0.len()) {
            self.0[byte] |= mask;
        }
    }

    pub(super) fn may_have(&self, hash: u64) -> bool {
        !self.0.is_empty() && probes(hash, self.0.len()).all(|(byte, mask)| self.0[byte] & mask > 0)
    }
}

/// The bits of a hash: byte and mask.
fn probes(hash: u64, bytes: usize) -> impl Iterator<Item = (usize, u8)> {
    let bits = bytes as u64 * 8;
    let step = hash.rotate_left(32) | 1;
    (0..PROBES).map(move |probe| {
        let bit = hash.wrapping_add(probe.wrapping_mul(step)) % bits;
        let byte = usize::try_from(bit / 8).expect("within the bytes");
        (byte, 1 << (bit % 8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_refuses_most_others_and_no_value_of_its_own() {
        let hash = |number: u64| xxh3_64(&number.to_le_bytes());
        let mut filter = IndexFilter::new(10_000);
        (0..10_000).for_each(|number| filter.add(hash(number)));
        assert!((0..10_000).all(|number| filter.may_have(hash(number))));
        let passed = (10_000..20_000).filter(|number| filter.may_have(hash(*number))).count();
        assert!(passed < 500, "{passed} of 10,000");
        assert!(!IndexFilter::new(0).may_have(hash(1)));
    }
}
