//! Numbers, texts, times and ids: the parts of every other encoding.
//!
//! [`Reader`] decodes values from the front of a slice. It never reads past the end, and compares
//! every length with the bytes that are left before it uses it.

use std::time::Duration;

use punctual_core::{FireId, TaskId, Timestamp};

use super::{CodecError, Decoded};

/// Decodes values from the front of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader at the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns the bytes that were not read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// Checks that everything was read.
    pub const fn end(&self) -> Decoded<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(CodecError::Invalid("end")) }
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Decoded<u8> {
        let (first, rest) = self.bytes.split_first().ok_or(CodecError::Short("byte"))?;
        self.bytes = rest;
        Ok(*first)
    }

    /// Reads a number of up to 64 bits, encoded with seven bits per byte.
    pub fn varint(&mut self) -> Decoded<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError::Invalid("number"))
    }

    /// Reads a signed number.
    pub fn signed(&mut self) -> Decoded<i64> {
        let zigzag = self.varint()?;
        Ok((zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed()))
    }

    /// Reads a number that must fit a smaller type; `what` names it in the error.
    pub fn small<T: TryFrom<u64>>(&mut self, what: &'static str) -> Decoded<T> {
        T::try_from(self.varint()?).map_err(|_| CodecError::Invalid(what))
    }

    /// Reads `length` bytes.
    pub fn take(&mut self, length: usize) -> Decoded<&'a [u8]> {
        let (taken, rest) =
            self.bytes.split_at_checked(length).ok_or(CodecError::Short("bytes"))?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Reads bytes that follow their length.
    pub fn bytes(&mut self) -> Decoded<&'a [u8]> {
        let length = self.small("length")?;
        self.take(length)
    }

    /// Reads text that follows its length.
    pub fn text(&mut self) -> Decoded<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| CodecError::Invalid("text"))
    }

    /// Reads an instant.
    pub fn timestamp(&mut self) -> Decoded<Timestamp> {
        Timestamp::try_from_millis(i128::from(self.varint()?))
            .map_err(|_| CodecError::Invalid("timestamp"))
    }

    /// Reads a duration.
    pub fn duration(&mut self) -> Decoded<Duration> {
        let secs = self.varint()?;
        let nanos: u32 = self.small("duration")?;
        if nanos >= 1_000_000_000 {
            return Err(CodecError::Invalid("duration"));
        }
        Ok(Duration::new(secs, nanos))
    }

    /// Reads a task id.
    pub fn task_id(&mut self) -> Decoded<TaskId> {
        let bytes = self.take(16)?.try_into().map_err(|_| CodecError::Short("id"))?;
        TaskId::try_from_u128(u128::from_be_bytes(bytes)).map_err(|_| CodecError::Invalid("id"))
    }

    /// Reads a fire id.
    pub fn fire_id(&mut self) -> Decoded<FireId> {
        Ok(FireId { task: self.task_id()?, nominal_at: self.timestamp()? })
    }
}

/// Writes a number of up to 64 bits, seven bits per byte.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).expect("seven bits"));
}

/// Writes a signed number.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, (value << 1).cast_unsigned() ^ (value >> 63).cast_unsigned());
}

/// Writes the length of `bytes`, then the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes an instant.
pub fn put_timestamp(out: &mut Vec<u8>, at: Timestamp) {
    put_varint(out, at.as_millis());
}

/// Writes a duration.
pub fn put_duration(out: &mut Vec<u8>, duration: Duration) {
    put_varint(out, duration.as_secs());
    put_varint(out, u64::from(duration.subsec_nanos()));
}

/// Writes a task id. The bytes sort in the order of ids.
pub fn put_task_id(out: &mut Vec<u8>, id: TaskId) {
    out.extend_from_slice(&id.as_u128().to_be_bytes());
}

/// Writes a fire id.
pub fn put_fire_id(out: &mut Vec<u8>, fire_id: FireId) {
    put_task_id(out, fire_id.task);
    put_timestamp(out, fire_id.nominal_at);
}

/// Reads the length of a list. Each element has at least one byte, so a count larger than the bytes
/// that are left is an error.
pub(super) fn read_count(reader: &mut Reader<'_>) -> Decoded<usize> {
    let count = reader.small("count")?;
    if count > reader.rest().len() {
        return Err(CodecError::Short("list"));
    }
    Ok(count)
}
