//! Kafka: records in topics, confirmed by all in-sync replicas.

use punctual_core::ConnectionName;

use crate::connection::MessageLink;
use crate::not_built::NotBuilt;
use crate::sink::Sink;

/// The sink of a connection.
pub(crate) fn sink(_: &ConnectionName, _: &MessageLink, _answer_bytes: usize) -> Box<dyn Sink> {
    Box::new(NotBuilt("kafka"))
}
