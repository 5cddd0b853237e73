//! Builds the request of a call: its metadata, and the message with its prefix.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use punctual_core::{GrpcTarget, PAYLOAD_BYTES_MAX, TIMEOUT_MAX, TaskKey};
use punctual_engine::Delivery;

use super::super::webhook::{AGENT, BoxError, PUNCTUAL_KEY, Signer, host_of, put_headers};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The key of a task that is not printable ASCII, in base64. Libraries decode such metadata.
const PUNCTUAL_KEY_BIN: HeaderName = HeaderName::from_static("punctual-key-bin");

const _: () = assert!(PAYLOAD_BYTES_MAX < u32::MAX as usize, "the prefix has four bytes for it");
const _: () = assert!(TIMEOUT_MAX.as_millis() < 100_000_000, "a timeout has eight digits");

/// Returns the head of the request, and its body in two parts: the prefix of the message, and the
/// message.
pub(super) fn request(
    delivery: &Delivery,
    target: &GrpcTarget,
    uri: &Uri,
    signer: &Signer,
    timeout: Duration,
) -> Result<(Request<()>, [Bytes; 2]), BoxError> {
    let payload = delivery.definition.payload.bytes();
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = method_uri(uri, target.method())?;
    let headers = request.headers_mut();
    headers.insert(TE, TRAILERS);
    headers.insert(GRPC_TIMEOUT, timeout_value(timeout)?);
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(USER_AGENT, AGENT);
    put_headers(headers, delivery, signer, payload)?;
    if let Some(key) = &delivery.definition.key {
        put_key(headers, key)?;
    }
    let length = u32::try_from(payload.len())?.to_be_bytes();
    // Not compressed, and the length.
    let prefix = [&[0][..], &length].concat();
    Ok((request, [prefix.into(), payload.clone()]))
}

/// The URI of a method of the server at a URL.
fn method_uri(server: &Uri, method: &str) -> Result<Uri, BoxError> {
    let mut parts = server.clone().into_parts();
    parts.authority = Some(host_of(server)?.as_bytes().try_into()?);
    parts.path_and_query = Some(PathAndQuery::try_from(method)?);
    Ok(Uri::from_parts(parts)?)
}

/// The time that is left, rounded up: the server is not to give up before we do.
fn timeout_value(timeout: Duration) -> Result<HeaderValue, BoxError> {
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    Ok(format!("{millis}m").try_into()?)
}

/// Metadata is printable ASCII, and blanks at its ends may be lost.
fn put_key(headers: &mut HeaderMap, key: &TaskKey) -> Result<(), BoxError> {
    let key = key.as_str();
    let is_text = key.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && key.trim() == key;
    if is_text {
        headers.insert(PUNCTUAL_KEY, key.try_into()?);
    } else {
        headers.insert(PUNCTUAL_KEY_BIN, STANDARD_NO_PAD.encode(key).try_into()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_has_the_host_of_its_url_without_a_default_port() {
        for (url, expected) in [
            ("http://orders:50051", "http://orders:50051/a.B/C"),
            ("http://orders:80/", "http://orders/a.B/C"),
            ("https://orders:443", "https://orders/a.B/C"),
            ("https://[::1]:8443/", "https://[::1]:8443/a.B/C"),
        ] {
            let uri = method_uri(&url.parse().unwrap(), "/a.B/C").unwrap();
            assert_eq!(uri.to_string(), expected);
        }
    }

    #[test]
    fn the_timeout_is_rounded_up_to_milliseconds() {
        for (timeout, expected) in [
            (Duration::from_secs(10), "10000m"),
            (Duration::from_micros(1_001), "2m"),
            (Duration::from_nanos(1), "1m"),
            (TIMEOUT_MAX, "900000m"),
        ] {
            assert_eq!(timeout_value(timeout).unwrap(), expected);
        }
    }

    #[test]
    fn a_key_that_metadata_cannot_carry_is_in_base64() {
        for (key, name, expected) in [
            ("order-42", "punctual-key", "order-42"),
            ("a b~!", "punctual-key", "a b~!"),
            ("Köln", "punctual-key-bin", "S8O2bG4"),
            (" a", "punctual-key-bin", "IGE"),
            ("a ", "punctual-key-bin", "YSA"),
        ] {
            let mut headers = HeaderMap::new();
            put_key(&mut headers, &TaskKey::new(key).unwrap()).unwrap();
            assert_eq!(headers.len(), 1);
            assert_eq!(headers[name], expected, "{key:?}");
        }
    }
}
