//! The keys of due counts and of the index of series in the catalog.
//!
//! A row of due counts has one hour of one namespace and partition
//! ([`HourCounts`](punctual_store::codec::HourCounts)). A row of the index of series is a key
//! without a value; keys of a namespace are in the order of tasks.

use punctual_core::{PartitionId, TaskId, Timestamp};
use punctual_store::codec::CodecError;
use punctual_store::{DueHour, Position};

/// The start of all keys of a namespace in a partition. Names of namespaces have no zero byte.
pub(crate) fn namespace_prefix(partition: PartitionId, namespace: &str) -> Vec<u8> {
    let mut key = partition.get().to_be_bytes().to_vec();
    key.extend_from_slice(namespace.as_bytes());
    key.push(0);
    key
}

pub(super) fn hour_key(partition: PartitionId, namespace: &str, hour: DueHour) -> Vec<u8> {
    let mut key = namespace_prefix(partition, namespace);
    key.extend_from_slice(&hour.get().to_be_bytes());
    key
}

/// Reads the namespace and the hour of a key.
pub(super) fn read_hour_key(key: &[u8]) -> Result<(&str, DueHour), CodecError> {
    let short = || CodecError::Short("key of due counts");
    let (rest, hour) = key.split_last_chunk().ok_or_else(short)?;
    let namespace = rest.get(2..rest.len().saturating_sub(1)).ok_or_else(short)?;
    let namespace = std::str::from_utf8(namespace);
    let namespace = namespace.map_err(|_| CodecError::Invalid("namespace"))?;
    Ok((namespace, DueHour::new(u32::from_be_bytes(*hour))))
}

/// The key of a series at a position.
pub(crate) fn series_key(partition: PartitionId, namespace: &str, at: Position) -> Box<[u8]> {
    let mut key = namespace_prefix(partition, namespace);
    key.extend_from_slice(&at.fire_at.as_millis().to_be_bytes());
    key.extend_from_slice(&at.id.as_u128().to_be_bytes());
    key.into_boxed_slice()
}

/// Reads the position of a series from its key.
pub(crate) fn read_series_key(key: &[u8]) -> Result<Position, CodecError> {
    let short = || CodecError::Short("key of a series");
    let (rest, id) = key.split_last_chunk::<16>().ok_or_else(short)?;
    let (_, at) = rest.split_last_chunk::<8>().ok_or_else(short)?;
    let at = Timestamp::try_from_millis(i128::from(u64::from_be_bytes(*at)));
    let id = TaskId::try_from_u128(u128::from_be_bytes(*id));
    Ok(Position {
        fire_at: at.map_err(|_| CodecError::Invalid("timestamp"))?,
        id: id.map_err(|_| CodecError::Invalid("id"))?,
    })
}

#[cfg(test)]
mod tests {
    use punctual_store::codec::HourCounts;

    use super::*;
    use crate::golden::assert_golden;

    #[test]
    fn an_hour_has_its_bytes_and_reads_back() {
        let hour = DueHour::new(500_000);
        let mut counts = HourCounts::default();
        assert_eq!(counts.to_bytes(), None);
        for (index, by) in [(0, 1), (7, 100_000), (8, -2), (59, 3)] {
            counts.add(hour.minute(index), by);
        }
        let bytes = counts.to_bytes().expect("not zero");
        let golden = assert_golden("due_hour", &bytes);
        assert_eq!(HourCounts::read(&golden), Ok(counts.clone()));
        assert_eq!(HourCounts::read_sum(&golden), Ok(100_002));
        assert_eq!(counts.iter(hour).last(), Some((hour.minute(59), 3)));
        for length in 0..golden.len() {
            assert!(HourCounts::read(&golden[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn keys_read_back_and_sort_by_time() {
        let partition = PartitionId::new(3).expect("a partition");
        let hour = DueHour::new(500_000);
        let key = hour_key(partition, "shop", hour);
        assert_eq!(read_hour_key(&key), Ok(("shop", hour)));
        assert!(key < hour_key(partition, "shop", DueHour::new(500_001)));
        let id = TaskId::floor(Timestamp::from_millis(5));
        let at = |millis| Position { fire_at: Timestamp::from_millis(millis), id };
        let key = series_key(partition, "shop", at(255));
        let golden = assert_golden("series_key", &key);
        assert_eq!(read_series_key(&golden), Ok(at(255)));
        assert!(key < series_key(partition, "shop", at(256)));
        assert!(read_series_key(&key[..9]).is_err() && read_hour_key(&[0; 3]).is_err());
    }
}
