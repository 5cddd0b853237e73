//! Calls of the HTTP API, for what gRPC does not offer. They use the connections of the other calls
//! and are repeated by the same rules.

use http_body_util::{BodyExt as _, Limited};
use prost::Message as _;
use punctual_proto::v1;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tonic::codegen::{Bytes, Service as _, http};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Response, Status, body::Body};

use crate::Error;
use crate::brokers::ANSWER_BYTES_MAX;
use crate::brokers::channel::TrackedChannel;
use crate::client::unary::{RetryWhen, UnaryCalls};
use crate::wire::PROBLEM_METADATA;

impl UnaryCalls {
    /// Sends JSON, or nothing if `body` is null, and reads JSON.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        retry_when: RetryWhen,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<T, Error> {
        let call = |channel| send(channel, method, path, body);
        let answer = self.call_channel(retry_when, call).await?;
        serde_json::from_slice(&answer).map_err(|_| Error::Answer("the JSON has another form"))
    }
}

async fn send(
    mut channel: TrackedChannel,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Response<Bytes>, Status> {
    let internal = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
    let mut request = http::Request::builder().method(method).uri(path);
    let mut sent = Body::empty();
    if !body.is_null() {
        request = request.header("content-type", "application/json");
        sent = Body::new(http_body_util::Full::new(Bytes::from(body.to_string())));
    }
    let request = request.body(sent).map_err(|error| internal(&error))?;
    let ready = std::future::poll_fn(|context| channel.poll_ready(context)).await;
    ready.map_err(|error| Status::from_error(error.into()))?;
    let answer = channel.call(request).await;
    let answer = answer.map_err(|error| Status::from_error(error.into()))?;
    let status = answer.status();
    let read = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
    let read = read.map_err(|error| internal(&error))?.to_bytes();
    if status.is_success() { Ok(Response::new(read)) } else { Err(refusal(status.as_u16(), &read)) }
}

/// The gRPC status that a broker would answer instead of a problem document.
fn refusal(status: u16, document: &[u8]) -> Status {
    let document: Value = serde_json::from_slice(document).unwrap_or_default();
    let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    let problem = v1::Problem {
        r#type: text("type"),
        status: status.into(),
        detail: text("detail"),
        field: text("field"),
        existing: None,
    };
    let code = match status {
        429 | 503 | 507 => Code::Unavailable,
        500.. => Code::Internal,
        _ => Code::InvalidArgument,
    };
    let mut metadata = MetadataMap::new();
    metadata.insert_bin(PROBLEM_METADATA, MetadataValue::from_bytes(&problem.encode_to_vec()));
    Status::with_metadata(code, problem.detail, metadata)
}

/// Encodes a name as one segment of a path.
pub(crate) fn segment(name: &str) -> String {
    let mut segment = String::with_capacity(name.len());
    // A segment of only dots would be a step in the path.
    let dots = name.bytes().all(|byte| byte == b'.');
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) || (byte == b'.' && !dots) {
            segment.push(char::from(byte));
        } else {
            segment.push_str(&format!("%{byte:02X}"));
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_of_a_path() {
        for (name, want) in [("a-1.b", "a-1.b"), ("a/b?", "a%2Fb%3F"), ("..", "%2E%2E")] {
            assert_eq!(segment(name), want);
        }
    }
}
