//! A unary gRPC method as a target: the payload is the message.

use crate::Invalid;
use crate::limits::{GRPC_METHOD_BYTES_MAX, URL_BYTES_MAX};
use crate::target::{check_url, origin_of};

/// A unary gRPC method of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GrpcTarget {
    url: String,
    method: String,
}

impl GrpcTarget {
    /// Makes a target, after checking URL and method.
    pub fn new(url: &str, method: &str) -> Result<Self, Invalid> {
        check_url(url).map_err(|problem| Invalid::new("url", problem))?;
        if !matches!(&url[origin_of(url).len()..], "" | "/") {
            let problem = "must have no path: the method names what is called";
            return Err(Invalid::new("url", problem));
        }
        check_method(method).map_err(|problem| Invalid::new("method", problem))?;
        Ok(Self { url: url.to_owned(), method: method.to_owned() })
    }

    /// The URL of the server as the caller wrote it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Scheme, host and port of the URL.
    #[must_use]
    pub fn origin(&self) -> &str {
        origin_of(&self.url)
    }

    /// The method, like `/shop.Orders/Cancel`.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }
}

fn check_method(method: &str) -> Result<(), String> {
    const FORM: &str = "must be like /package.Service/Method";
    if method.len() > GRPC_METHOD_BYTES_MAX {
        return Err(format!(
            "must have at most {GRPC_METHOD_BYTES_MAX} bytes, has {}",
            method.len()
        ));
    }
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let parts = method.strip_prefix('/').and_then(|rest| rest.split_once('/'));
    let Some((service, name)) = parts else { return Err(FORM.to_owned()) };
    (service.split('.').all(is_word) && is_word(name)).then_some(()).ok_or_else(|| FORM.to_owned())
}

const _: () = assert!(GRPC_METHOD_BYTES_MAX <= URL_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_the_url_of_a_server_and_a_method() {
        for (url, method, field) in [
            ("http://orders:50051", "/shop.v1.Orders/Cancel", None),
            ("https://orders.example.org/", "/Orders/Cancel", None),
            ("http://orders:50051/path", "/Orders/Cancel", Some("url")),
            ("http://orders:50051?a=b", "/Orders/Cancel", Some("url")),
            ("grpc://orders:50051", "/Orders/Cancel", Some("url")),
            ("http://orders", "Orders/Cancel", Some("method")),
            ("http://orders", "/Orders", Some("method")),
            ("http://orders", "/Orders/", Some("method")),
            ("http://orders", "/Orders/Cancel/All", Some("method")),
            ("http://orders", "/shop..Orders/Cancel", Some("method")),
            ("http://orders", "/Orders/Can cel", Some("method")),
            ("http://orders", "", Some("method")),
        ] {
            let target = GrpcTarget::new(url, method);
            let found = target.as_ref().err().map(|error| error.field.as_str());
            assert_eq!(found, field, "{url} {method}");
        }
        let target = GrpcTarget::new("https://orders.example.org/", "/Orders/Cancel").unwrap();
        assert_eq!(target.origin(), "https://orders.example.org");
    }
}
