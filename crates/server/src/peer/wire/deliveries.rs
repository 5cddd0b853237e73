//! Deliveries to a worker that polls at another broker, and its words on the way back.

use std::time::Duration;

use punctual_core::{
    AttemptNo, BACKOFF_MAX, FireId, Occasion, Payload, Reason, TIMEOUT_MAX, TaskKey, Timestamp,
    Version,
};
use punctual_store::codec::{
    CodecError, Reader, occasion_code, occasion_of, put_bytes, put_duration, put_fire_id,
    put_payload, put_timestamp, put_varint, read_payload,
};

use super::{Packed, Read, Result, list_of, read_list};
use crate::courier::queue::{Heard, Leased, Token, Word};

/// Deliveries of one poll.
pub(crate) const DELIVERIES_MAX: usize = 1000;
/// Words at once: as many as one request of a worker has.
const WORDS_MAX: usize = 10_000;

/// A delivery in the hands of a worker, wherever it was leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Polled {
    /// Settles it, at the broker that leased it.
    pub(crate) token: Token,
    /// For how long.
    pub(crate) lease: Duration,
    pub(crate) fire_id: FireId,
    pub(crate) attempt: AttemptNo,
    pub(crate) fire_at: Timestamp,
    pub(crate) fired_at: Timestamp,
    pub(crate) occasion: Occasion,
    pub(crate) version: Version,
    pub(crate) key: Option<TaskKey>,
    pub(crate) payload: Payload,
}

impl From<&Leased> for Polled {
    fn from(leased: &Leased) -> Self {
        let delivery = &leased.delivery;
        Self {
            token: leased.token,
            lease: leased.lease,
            fire_id: delivery.fire_id,
            attempt: delivery.attempt,
            fire_at: delivery.fire_at,
            fired_at: delivery.fired_at,
            occasion: delivery.occasion,
            version: delivery.version,
            key: delivery.definition.key.clone(),
            payload: delivery.definition.payload.clone(),
        }
    }
}

/// Deliveries, in pieces of about a megabyte.
pub(crate) fn delivery_pieces(deliveries: Vec<Polled>) -> impl Iterator<Item = Vec<u8>> + Send {
    Packed { values: deliveries.into_iter(), put: put_delivery }
}

/// Reads a piece.
pub(crate) fn read_deliveries(bytes: &[u8]) -> Read<Vec<Polled>> {
    read_list(bytes, DELIVERIES_MAX, read_delivery)
}

fn put_delivery(out: &mut Vec<u8>, polled: &Polled) {
    put_varint(out, polled.token.0);
    put_duration(out, polled.lease);
    put_fire_id(out, polled.fire_id);
    put_varint(out, u64::from(polled.attempt.get()));
    put_timestamp(out, polled.fire_at);
    put_timestamp(out, polled.fired_at);
    out.push(occasion_code(polled.occasion));
    put_varint(out, polled.version.get());
    // No key is empty.
    let key = polled.key.as_ref().map_or("", TaskKey::as_str);
    put_bytes(out, key.as_bytes());
    put_payload(out, &polled.payload);
}

fn read_delivery(reader: &mut Reader<'_>) -> Result<Polled> {
    Ok(Polled {
        token: Token(reader.varint()?),
        lease: reader.duration()?,
        fire_id: reader.fire_id()?,
        attempt: AttemptNo::new(reader.small("attempt")?),
        fire_at: reader.timestamp()?,
        fired_at: reader.timestamp()?,
        occasion: occasion_of(reader.byte()?)?,
        version: Version::new(reader.varint()?),
        key: match reader.text()? {
            "" => None,
            key => Some(TaskKey::new(key).map_err(|_| CodecError::Invalid("key"))?),
        },
        payload: read_payload(reader)?,
    })
}

/// Writes what a worker says.
pub(crate) fn put_words(words: &[(Token, Word)]) -> Vec<u8> {
    list_of(words, |out, (token, word)| {
        put_varint(out, token.0);
        put_word(out, word);
    })
}

/// Reads what a worker says.
pub(crate) fn read_words(bytes: &[u8]) -> Read<Vec<(Token, Word)>> {
    read_list(bytes, WORDS_MAX, |reader| Ok((Token(reader.varint()?), read_word(reader)?)))
}

fn put_word(out: &mut Vec<u8>, word: &Word) {
    match word {
        Word::Ack => out.push(0),
        Word::Fail { reason, retry_in: None } => {
            out.push(1);
            put_bytes(out, reason.as_str().as_bytes());
        }
        Word::Fail { reason, retry_in: Some(retry_in) } => {
            out.push(2);
            put_bytes(out, reason.as_str().as_bytes());
            put_duration(out, *retry_in);
        }
        Word::Refuse { reason } => {
            out.push(3);
            put_bytes(out, reason.as_str().as_bytes());
        }
        Word::Extend { lease } => {
            out.push(4);
            put_duration(out, *lease);
        }
        Word::Unseen => out.push(5),
    }
}

fn read_word(reader: &mut Reader<'_>) -> Result<Word> {
    Ok(match reader.byte()? {
        0 => Word::Ack,
        1 => Word::Fail { reason: Reason::new(reader.text()?), retry_in: None },
        2 => Word::Fail {
            reason: Reason::new(reader.text()?),
            retry_in: Some(read_at_most(reader, BACKOFF_MAX)?),
        },
        3 => Word::Refuse { reason: Reason::new(reader.text()?) },
        4 => Word::Extend { lease: read_at_most(reader, TIMEOUT_MAX)? },
        5 => Word::Unseen,
        _ => return Err(CodecError::Invalid("word")),
    })
}

/// A span that is no longer than a caller may say.
fn read_at_most(reader: &mut Reader<'_>, max: Duration) -> Result<Duration> {
    reader.duration().and_then(|span| match span {
        span if span <= max => Ok(span),
        _ => Err(CodecError::Invalid("duration")),
    })
}

/// Writes what came of words.
pub(crate) fn put_heard(heard: &[Heard]) -> Vec<u8> {
    list_of(heard, |out, heard| {
        out.push(match heard {
            Heard::Taken => 0,
            Heard::Stale => 1,
        });
    })
}

/// Reads what came of words.
pub(crate) fn read_heard(bytes: &[u8]) -> Read<Vec<Heard>> {
    read_list(bytes, WORDS_MAX, |reader| match reader.byte()? {
        0 => Ok(Heard::Taken),
        1 => Ok(Heard::Stale),
        _ => Err(CodecError::Invalid("answer")),
    })
}
