//! The members of `due-hours`: a namespace, a zero, an hour and the counts of its minutes.
//!
//! A batch does not change hours: it appends its differences to a log
//! ([`DueDifferences`](punctual_store::codec::DueDifferences)), which is one command whatever the
//! number of minutes. The owner folds the log into hours now and then (`read/due`); by then most
//! tasks of the near future have come and gone.

use punctual_store::DueHour;
use punctual_store::codec::{CodecError, Decoded, HourCounts};

/// The size of an hour in a member.
const HOUR_BYTES: usize = 4;

/// Returns the start of the member of an hour, which its counts follow.
pub(crate) fn hour_prefix(namespace: &str, hour: DueHour) -> Vec<u8> {
    let mut member = Vec::with_capacity(namespace.len() + 1 + HOUR_BYTES);
    member.extend_from_slice(namespace.as_bytes());
    member.push(0);
    member.extend_from_slice(&hour.get().to_be_bytes());
    member
}

/// Returns the member of an hour; `None` if every count is zero.
pub(crate) fn hour_member(namespace: &str, hour: DueHour, counts: &HourCounts) -> Option<Vec<u8>> {
    let counts = counts.to_bytes()?;
    Some([hour_prefix(namespace, hour), counts].concat())
}

/// Splits the member of an hour of a namespace into the hour and its counts.
pub(crate) fn read_hour_member<'a>(
    namespace: &str,
    member: &'a [u8],
) -> Decoded<(DueHour, &'a [u8])> {
    let rest = member.get(namespace.len() + 1..).ok_or(CodecError::Short("hour"))?;
    let (hour, counts) = rest.split_first_chunk().ok_or(CodecError::Short("hour"))?;
    Ok((DueHour::new(u32::from_be_bytes(*hour)), counts))
}

#[cfg(test)]
mod tests {
    use punctual_store::conformance::fixtures::shop;

    use super::*;

    #[test]
    fn an_hour_reads_back_and_sorts_by_time() {
        let hour = DueHour::new(500_000);
        let mut counts = HourCounts::default();
        assert_eq!(hour_member("shop", hour, &counts), None);
        counts.add(hour.minute(3), 70);
        let member = hour_member(shop().as_str(), hour, &counts).unwrap();
        let (read, rest) = read_hour_member("shop", &member).unwrap();
        assert_eq!((read, HourCounts::read(rest)), (hour, Ok(counts)));
        assert!(member < hour_prefix("shop", DueHour::new(500_001)));
        assert!(read_hour_member("shop", &member[..7]).is_err());
    }
}
