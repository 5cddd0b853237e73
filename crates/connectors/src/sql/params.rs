//! Binds the parameters of a statement to values of a delivery.
//!
//! A parameter that the task gives has that value; the others come from the delivery or from its
//! payload. A value that is missing refuses the delivery, because no later attempt would have it.

use punctual_core::{Payload, SinkAddress, Target, Timestamp};
use punctual_engine::Delivery;
use serde_json::Value;

use super::statement::{ParamSource, Statement};

/// A value for a placeholder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SqlValue {
    Json(Value),
    /// A payload that is not JSON.
    Bytes(Vec<u8>),
    Time(Timestamp),
}

impl SqlValue {
    fn text(text: &str) -> Self {
        Self::Json(Value::String(text.to_owned()))
    }
}

/// Returns the values of all placeholders in order.
pub(crate) fn bind(statement: &Statement, delivery: &Delivery) -> Result<Vec<SqlValue>, String> {
    let definition = &*delivery.definition;
    let given = match &definition.target {
        Target::Sink(sink) => match &sink.address {
            SinkAddress::Sql(call) => call.params(),
            SinkAddress::Message(_) => &[],
        },
        Target::Http(_) | Target::Queue(_) | Target::Mail(_) | Target::Grpc(_) => &[],
    };
    for param in given {
        if !statement.params.iter().any(|known| known.name == param.name) {
            return Err(format!("the statement has no parameter :{}", param.name));
        }
    }
    let mut payload = None;
    let values = statement.params.iter().map(|param| {
        if let Some(given) = given.iter().find(|given| given.name == param.name) {
            let value = serde_json::from_str(&given.value);
            return value.map(SqlValue::Json).map_err(|_| format!(":{} is not JSON", param.name));
        }
        Ok(match &param.from {
            ParamSource::Namespace => SqlValue::text(definition.namespace.as_str()),
            ParamSource::Key => match &definition.key {
                Some(key) => SqlValue::text(key.as_str()),
                None => SqlValue::Json(Value::Null),
            },
            ParamSource::FireId => SqlValue::text(&delivery.fire_id.to_string()),
            ParamSource::FireAt => SqlValue::Time(delivery.fire_at),
            ParamSource::Attempt => SqlValue::Json(delivery.attempt.get().into()),
            ParamSource::Payload => whole(&definition.payload)?,
            ParamSource::Pointer(pointer) => {
                if payload.is_none() {
                    payload = Some(json(&definition.payload)?);
                }
                let value = payload.as_ref().and_then(|json: &Value| json.pointer(pointer));
                SqlValue::Json(value.cloned().ok_or_else(|| {
                    format!("the payload has nothing at {pointer:?} for parameter :{}", param.name)
                })?)
            }
        })
    });
    values.collect()
}

fn whole(payload: &Payload) -> Result<SqlValue, String> {
    Ok(match payload {
        Payload::Empty => SqlValue::Json(Value::Null),
        Payload::Json(_) => SqlValue::Json(json(payload)?),
        Payload::Binary { bytes, .. } => SqlValue::Bytes(bytes.to_vec()),
    })
}

fn json(payload: &Payload) -> Result<Value, String> {
    match payload {
        Payload::Json(bytes) => {
            serde_json::from_slice(bytes).map_err(|_| "the payload is not JSON".to_owned())
        }
        Payload::Empty => Ok(Value::Null),
        Payload::Binary { .. } => Err("the payload is not JSON".to_owned()),
    }
}
