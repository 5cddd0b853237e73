//! Encodes deliveries for workers directly, without building messages first.
//!
//! The transport asks for the bytes of a message when it can write them. Until then a delivery may
//! be recalled, so the hub marks deliveries as sent here.
//!
//! Most of what a broker sends are deliveries, and building a message for each costs six
//! allocations. Everything else is encoded by the generated code. The bytes are those that the
//! generated code would write; the test below fails if the message gets another field.

use std::sync::Arc;

use bytes::BufMut;
use prost::Message as _;
use prost::encoding::{encode_varint, encoded_len_varint};
use punctual_core::{FireId, Occasion, Target, TaskId, TaskKey};
use punctual_proto::v1;
use tonic::Status;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

use super::convert::as_millis;
use crate::courier::Hub;
use crate::courier::queue::Leased;

/// A message to a worker.
#[derive(Debug)]
pub(super) enum OutgoingMessage {
    Message(v1::BrokerMessage),
    Deliveries(Vec<Leased>),
}

/// Encodes the messages of a worker's stream.
#[derive(Debug, Clone)]
pub(super) struct WorkCodec {
    pub(super) hub: Arc<Hub>,
}

impl Codec for WorkCodec {
    type Encode = OutgoingMessage;
    type Decode = v1::WorkerMessage;
    type Encoder = Self;
    type Decoder = ProstDecoder<v1::WorkerMessage>;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl Encoder for WorkCodec {
    type Item = OutgoingMessage;
    type Error = Status;

    fn encode(&mut self, item: OutgoingMessage, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match item {
            OutgoingMessage::Message(message) => {
                message.encode(out).map_err(|error| Status::internal(error.to_string()))?;
            }
            OutgoingMessage::Deliveries(leased) => {
                let leased = self.hub.send_leased(leased);
                let length = length_of(&leased);
                out.reserve(length + LENGTH_BYTES_MAX);
                put(out, length, &leased);
            }
        }
        Ok(())
    }
}

/// The field of deliveries in `BrokerMessage`, and of one delivery in `Deliveries`.
const DELIVERIES: u8 = 2;
const DELIVERY: u8 = 1;
/// Bytes of a field's number and type, and of its length.
const LENGTH_BYTES_MAX: usize = 1 + 10;

/// The wire types of protobuf.
const VARINT: u8 = 0;
const FIXED: u8 = 1;
const BYTES: u8 = 2;

/// The value of a field. Empty values and zeros are not written.
#[derive(Clone, Copy)]
enum Value<'a> {
    Fixed(u64),
    Number(u64),
    Bytes(&'a [u8]),
}

impl Value<'_> {
    fn length(self) -> usize {
        match self {
            Self::Fixed(0) | Self::Number(0) | Self::Bytes([]) => 0,
            Self::Fixed(_) => 1 + 8,
            Self::Number(number) => 1 + encoded_len_varint(number),
            Self::Bytes(bytes) => 1 + encoded_len_varint(bytes.len() as u64) + bytes.len(),
        }
    }

    fn put(self, field: u8, out: &mut impl BufMut) {
        match self {
            Self::Fixed(0) | Self::Number(0) | Self::Bytes([]) => {}
            Self::Fixed(number) => {
                out.put_u8(field << 3 | FIXED);
                out.put_u64_le(number);
            }
            Self::Number(number) => {
                out.put_u8(field << 3 | VARINT);
                encode_varint(number, out);
            }
            Self::Bytes(bytes) => {
                put_head(field, bytes.len(), out);
                out.put_slice(bytes);
            }
        }
    }
}

fn put_head(field: u8, length: usize, out: &mut impl BufMut) {
    out.put_u8(field << 3 | BYTES);
    encode_varint(length as u64, out);
}

/// The ids of a delivery as text. The fire id begins with the id of the task.
struct IdTexts {
    fire_id: [u8; FireId::LETTERS],
    callback_of: Option<[u8; FireId::LETTERS]>,
}

impl IdTexts {
    fn of(leased: &Leased) -> Self {
        let callback_of = leased.delivery.definition.callback_of.map(|fire_id| fire_id.letters());
        Self { fire_id: leased.delivery.fire_id.letters(), callback_of }
    }

    /// Texts of the same lengths.
    fn lengths_of(leased: &Leased) -> Self {
        let text = [0; FireId::LETTERS];
        Self { fire_id: text, callback_of: leased.delivery.definition.callback_of.map(|_| text) }
    }
}

/// The fields of a delivery in the order of their numbers.
fn fields<'a>(leased: &'a Leased, ids: &'a IdTexts) -> [Value<'a>; 14] {
    use Value::{Bytes, Fixed, Number};
    let Leased { token, delivery, lease } = leased;
    let definition = &delivery.definition;
    let queue = match &definition.target {
        Target::Queue(queue) => queue.as_str(),
        Target::Http(_) | Target::Mail(_) | Target::Sink(_) | Target::Grpc(_) => "",
    };
    let occasion = match delivery.occasion {
        Occasion::Due => v1::Occasion::Due,
        Occasion::Manual => v1::Occasion::Manual,
        Occasion::Return => v1::Occasion::Return,
    };
    [
        Fixed(token.0),
        Bytes(&ids.fire_id),
        Bytes(&ids.fire_id[..TaskId::LETTERS]),
        Bytes(definition.key.as_ref().map_or("", TaskKey::as_str).as_bytes()),
        Bytes(queue.as_bytes()),
        Number(u64::from(delivery.attempt.get())),
        Bytes(definition.payload.bytes()),
        Bytes(definition.payload.content_type().unwrap_or_default().as_bytes()),
        Number(delivery.fire_at.as_millis()),
        Number(delivery.fired_at.as_millis()),
        Number(delivery.version.get()),
        Number(as_millis(*lease)),
        Number(occasion as u64),
        Bytes(ids.callback_of.as_ref().map_or(&[], |text| text)),
    ]
}

/// The encoded length of a delivery.
fn delivery_length(leased: &Leased) -> usize {
    let ids = IdTexts::lengths_of(leased);
    fields(leased, &ids).into_iter().map(Value::length).sum()
}

/// The encoded length of `Deliveries`.
fn length_of(leased: &[Leased]) -> usize {
    let lengths = leased.iter().map(delivery_length);
    lengths.map(|length| 1 + encoded_len_varint(length as u64) + length).sum()
}

fn put(out: &mut impl BufMut, length: usize, leased: &[Leased]) {
    put_head(DELIVERIES, length, out);
    for leased in leased {
        put_head(DELIVERY, delivery_length(leased), out);
        let ids = IdTexts::of(leased);
        for (field, value) in (1..).zip(fields(leased, &ids)) {
            value.put(field, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use punctual_core::{
        Due, Namespace, NewTask, Payload, Queue, Schedule, Task, Timestamp, Version,
    };
    use punctual_engine::Delivery;

    use super::*;
    use crate::courier::queue::LeaseToken;

    fn leased(token: u64, change: impl FnOnce(&mut NewTask)) -> Leased {
        let at = Timestamp::from_millis(1_800_000_000_123);
        let target = Target::Queue(Queue::new("orders").unwrap());
        let schedule = Schedule::Once(Due::At(at));
        let mut new_task = NewTask::new(Namespace::new("shop").unwrap(), schedule, target);
        change(&mut new_task);
        let task = Task::new(TaskId::floor(at), new_task.into(), at, Version::FIRST);
        let delivery = Delivery::of(&task, at.after(Duration::from_millis(7)));
        Leased { token: LeaseToken(token), delivery, lease: Duration::from_secs(30) }
    }

    /// The same delivery as a message of the generated code.
    fn message(leased: &Leased) -> v1::Delivery {
        let Leased { token, delivery, lease } = leased;
        let definition = &delivery.definition;
        v1::Delivery {
            token: token.0,
            fire_id: delivery.fire_id.to_string(),
            task: delivery.fire_id.task.to_string(),
            key: definition.key.as_ref().map_or_else(String::new, ToString::to_string),
            queue: "orders".to_owned(),
            attempt: 1,
            payload: definition.payload.bytes().clone(),
            content_type: definition.payload.content_type().unwrap_or_default().to_owned(),
            fire_at_ms: delivery.fire_at.as_millis(),
            fired_at_ms: delivery.fired_at.as_millis(),
            version: 1,
            lease_ms: as_millis(*lease),
            occasion: v1::Occasion::Due.into(),
            callback_of: definition.callback_of.map_or_else(String::new, |it| it.to_string()),
        }
    }

    #[test]
    fn deliveries_are_encoded_as_the_generated_code_encodes_them() {
        let all = vec![
            leased(u64::MAX, |_| {}),
            leased(0, |new_task| new_task.key = Some(TaskKey::new("ä key").unwrap())),
            leased(1, |new_task| new_task.payload = Payload::Json(Bytes::from_static(b"{}"))),
            leased(2, |new_task| {
                let nominal_at = Timestamp::from_millis(7);
                let task = TaskId::floor(nominal_at);
                new_task.callback_of = Some(FireId { task, nominal_at });
            }),
            leased(1 << 40, |new_task| {
                let bytes = Bytes::from(vec![7; 70_000]);
                let content_type = "application/octet-stream".into();
                new_task.payload = Payload::Binary { bytes, content_type };
            }),
        ];
        for leased in [&all[..0], &all[..1], &all] {
            let deliveries = leased.iter().map(message).collect();
            let deliveries = v1::Deliveries { deliveries };
            let message = v1::broker_message::Message::Deliveries(deliveries);
            let want = v1::BrokerMessage { message: Some(message) }.encode_to_vec();
            let mut encoded = Vec::new();
            put(&mut encoded, length_of(leased), leased);
            assert_eq!(encoded, want, "{} of them", leased.len());
        }
    }
}
