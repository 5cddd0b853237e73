//! Targets: where the deliveries of a task go: a webhook, a gRPC method, a queue, a sink or, for
//! notices, a mail.
//!
//! The form of a [`Target`] is checked once, when it is made. Whether Punctual may connect to its
//! address is decided by the courier, each time it resolves the host.

use http::header::{HeaderName, HeaderValue};
use http::uri::Scheme;

use crate::answer_rules::AnswerRules;
use crate::limits::{HEADERS_BYTES_MAX, HEADERS_MAX, URL_BYTES_MAX};
use crate::{GrpcTarget, Invalid, MailTarget, Queue, SinkTarget};

/// Headers that callers may not set, because the connection or Punctual sets them.
pub const HEADERS_RESERVED: [&str; 10] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Prefixes of headers that callers may not set.
pub const HEADERS_RESERVED_PREFIXES: [&str; 3] = ["webhook-", "punctual-", "proxy-"];

/// Where the deliveries of a task go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// An HTTP request to a URL.
    Http(HttpTarget),
    /// Workers that subscribe to a queue of the task's namespace.
    Queue(Queue),
    /// A mail through the broker's mail server. Boxed, because it is rare.
    Mail(Box<MailTarget>),
    /// A connection of the configuration. Boxed, to keep the others small.
    Sink(Box<SinkTarget>),
    /// A unary gRPC method. Boxed, to keep the others small.
    Grpc(Box<GrpcTarget>),
}

/// A webhook: an HTTP request whose body is the payload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HttpTarget {
    url: String,
    method: Method,
    headers: Vec<(String, String)>,
    /// `None` for the defaults. Boxed, because most webhooks have none.
    rules: Option<Box<AnswerRules>>,
}

/// HTTP methods that a webhook may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// `GET`, without a body.
    Get,
    /// `POST`, the default.
    #[default]
    Post,
    /// `PUT`.
    Put,
    /// `PATCH`.
    Patch,
    /// `DELETE`.
    Delete,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 5] = [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete];

    /// The method in upper case, as HTTP has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// Reads a method in upper case.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|method| method.as_str() == text)
            .ok_or_else(|| Invalid::new("method", "must be GET, POST, PUT, PATCH or DELETE"))
    }
}

impl HttpTarget {
    /// Makes a webhook, after checking URL and headers.
    pub fn new(url: &str, method: Method, headers: Vec<(String, String)>) -> Result<Self, Invalid> {
        check_url(url).map_err(|problem| Invalid::new("url", problem))?;
        check_headers(&headers)?;
        Ok(Self { url: url.to_owned(), method, headers, rules: None })
    }

    /// The webhook with rules for its answers.
    #[must_use]
    pub fn with_rules(self, rules: AnswerRules) -> Self {
        let rules = (!rules.is_default()).then(|| Box::new(rules));
        Self { rules, ..self }
    }

    /// Which answers are a success or a refusal; `None` for the defaults.
    #[must_use]
    pub fn rules(&self) -> Option<&AnswerRules> {
        self.rules.as_deref()
    }

    /// The URL as the caller wrote it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Scheme, host and port of the URL, as the caller wrote them.
    #[must_use]
    pub fn origin(&self) -> &str {
        origin_of(&self.url)
    }

    /// The HTTP method.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }

    /// The headers of the caller, in their order.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }
}

/// Scheme, host and port of a URL.
pub(crate) fn origin_of(url: &str) -> &str {
    // The path begins at the next slash after the two.
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?']).map_or(url.len(), |at| host + at);
    &url[..end]
}

pub(crate) fn check_url(url: &str) -> Result<(), String> {
    if url.len() > URL_BYTES_MAX {
        return Err(format!("must have at most {URL_BYTES_MAX} bytes, has {}", url.len()));
    }
    // HTTP does not send fragments, so the receiver would not see it.
    if url.contains('#') {
        return Err("must not have a fragment".to_owned());
    }
    let uri: http::Uri = url
        .parse()
        .map_err(|_| "must be an absolute URL like https://example.org/hook".to_owned())?;
    if uri.scheme() != Some(&Scheme::HTTP) && uri.scheme() != Some(&Scheme::HTTPS) {
        return Err("must begin with http:// or https://".to_owned());
    }
    let authority = uri.authority().ok_or_else(|| "must name a host".to_owned())?;
    if authority.as_str().contains('@') {
        return Err("must not carry a user or password; use a header".to_owned());
    }
    if authority.host().is_empty() {
        return Err("must name a host".to_owned());
    }
    let after_host = &authority.as_str()[authority.host().len()..];
    if !after_host.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err("must have a port from 1 to 65535, or none".to_owned());
    }
    Ok(())
}

fn check_headers(headers: &[(String, String)]) -> Result<(), Invalid> {
    if headers.len() > HEADERS_MAX {
        let problem = format!("must have at most {HEADERS_MAX} headers, has {}", headers.len());
        return Err(Invalid::new("headers", problem));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > HEADERS_BYTES_MAX {
        let problem = format!("must have at most {HEADERS_BYTES_MAX} bytes, has {bytes}");
        return Err(Invalid::new("headers", problem));
    }
    for (name, value) in headers {
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Invalid::new("headers", format!("{name:?} is not a header name")))?;
        let name = parsed.as_str();
        if HEADERS_RESERVED.contains(&name)
            || HEADERS_RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        {
            return Err(Invalid::new("headers", format!("{name:?} is set by Punctual itself")));
        }
        if HeaderValue::from_str(value).is_err() {
            let problem = "must be visible ASCII in one line";
            return Err(Invalid::new(format!("headers.{name}"), problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_must_be_absolute_http_or_https() {
        for (url, accepted) in [
            ("http://localhost:9000/cancel", true),
            ("https://example.org", true),
            ("https://example.org/a?b=c", true),
            ("http://[::1]:80/", true),
            ("ftp://example.org/", false),
            ("/cancel", false),
            ("localhost:9000", false),
            ("http://", false),
            ("http://user:secret@example.org/", false),
            ("http://example.org/#top", false),
            ("http://example.org:0/", false),
            ("http://example.org:99999/", false),
            ("http://example.org:/", false),
            ("http://exa mple.org/", false),
            ("http://example.org/\r\nx: y", false),
            ("", false),
        ] {
            let target = HttpTarget::new(url, Method::Post, vec![]);
            assert_eq!(target.is_ok(), accepted, "{url:?}");
        }
        let long = format!("http://example.org/{}", "x".repeat(2048));
        let error = HttpTarget::new(&long, Method::Post, vec![]).unwrap_err();
        assert_eq!(error.to_string(), "url: must have at most 2048 bytes, has 2067");
    }

    #[test]
    fn headers_can_neither_inject_others_nor_forge_those_of_punctual() {
        for (name, value, accepted) in [
            ("x-a", "b", true),
            ("Authorization", "Bearer abc", true),
            ("x-a", "b\r\nx-c: d", false),
            ("x a", "b", false),
            ("", "b", false),
            ("Host", "other", false),
            ("Content-Length", "0", false),
            ("webhook-id", "forged", false),
            ("Punctual-Key", "forged", false),
        ] {
            let headers = vec![(name.to_owned(), value.to_owned())];
            let target = HttpTarget::new("http://a/", Method::Post, headers);
            assert_eq!(target.is_ok(), accepted, "{name:?}: {value:?}");
        }
    }

    #[test]
    fn the_number_and_the_size_of_headers_are_limited() {
        let many = |n: usize| (0..n).map(|i| (format!("x-{i}"), String::new())).collect();
        assert!(HttpTarget::new("http://a/", Method::Post, many(32)).is_ok());
        assert!(HttpTarget::new("http://a/", Method::Post, many(33)).is_err());
        let long = vec![("x-a".to_owned(), "b".repeat(4096))];
        assert!(HttpTarget::new("http://a/", Method::Post, long).is_err());
    }
}
