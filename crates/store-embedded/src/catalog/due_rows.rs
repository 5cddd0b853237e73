//! The bytes of due counts and of the index of series in the catalog.
//!
//! A row of due counts has one hour of one namespace and partition: its sum, which minutes have
//! tasks, and how many. So a week is 168 rows, and each of its minutes is there. A row of the index
//! of series is a key without a value; keys of a namespace are in the order of tasks.

use punctual_core::{PartitionId, TaskId, Timestamp};
use punctual_store::codec::{CodecError, Reader, put_signed};
use punctual_store::{DueHour, DueMinute, Position};

/// The counts of one hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HourCounts {
    minutes: [i64; DueHour::MINUTES],
}

impl Default for HourCounts {
    fn default() -> Self {
        Self { minutes: [0; DueHour::MINUTES] }
    }
}

impl HourCounts {
    /// Adds to the count of a minute of the hour.
    pub(crate) fn add(&mut self, minute: DueMinute, by: i64) {
        self.minutes[minute.get() as usize % DueHour::MINUTES] += by;
    }

    /// The minutes that have a count, in order.
    pub(crate) fn iter(&self, hour: DueHour) -> impl Iterator<Item = (DueMinute, i64)> {
        hour.minutes().zip(self.minutes).filter(|(_, count)| *count != 0)
    }

    /// The row of the hour; `None` if every count is zero.
    pub(super) fn to_bytes(&self) -> Option<Vec<u8>> {
        let counted = (0..).zip(&self.minutes).filter(|(_, count)| **count != 0);
        let bits = counted.map(|(index, _): (u32, _)| 1u64 << index).sum::<u64>();
        if bits == 0 {
            return None;
        }
        let mut out = Vec::with_capacity(2 * DueHour::MINUTES);
        put_signed(&mut out, self.minutes.iter().sum());
        out.extend_from_slice(&bits.to_be_bytes());
        for count in self.minutes.iter().filter(|count| **count != 0) {
            put_signed(&mut out, *count);
        }
        Some(out)
    }

    pub(super) fn read(row: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(row);
        reader.signed()?;
        let bits = reader.take(8)?.try_into().map_err(|_| CodecError::Short("due counts"))?;
        let bits = u64::from_be_bytes(bits);
        let mut counts = Self::default();
        for (index, count) in counts.minutes.iter_mut().enumerate() {
            if bits & (1 << index) != 0 {
                *count = reader.signed()?;
            }
        }
        reader.end()?;
        Ok(counts)
    }

    /// The sum of a row, without its minutes.
    pub(super) fn read_sum(row: &[u8]) -> Result<i64, CodecError> {
        Reader::new(row).signed()
    }
}

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
        assert_eq!(read_series_key(&key), Ok(at(255)));
        assert!(key < series_key(partition, "shop", at(256)));
        assert!(read_series_key(&key[..9]).is_err() && read_hour_key(&[0; 3]).is_err());
    }
}
