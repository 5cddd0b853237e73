//! Redis Streams: entries, confirmed by the answer of XADD.

use punctual_core::ConnectionName;

use crate::connection::MessageLink;
use crate::not_built::NotBuilt;
use crate::sink::Sink;

/// The sink of a connection.
pub(crate) fn sink(_: &ConnectionName, _: &MessageLink, _answer_bytes: usize) -> Box<dyn Sink> {
    Box::new(NotBuilt("redis"))
}
