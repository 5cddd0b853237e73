//! Protects a broker without tokens from web pages in a browser on the same machine.
//!
//! Such a broker listens on loopback and trusts every program on the machine. A web page is none of
//! them, but its browser could schedule webhooks. Browsers send the origin of the page in `Origin`;
//! a page whose name was made to resolve to 127.0.0.1 (DNS rebinding) is recognized by `Host`.
//! Other programs send no `Origin`, and call a loopback address by a loopback name. A broker with
//! tokens needs no such check, because a page has no token.

use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri};

use crate::config::Config;
use crate::problem::Problem;

/// Which requests are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrowserPolicy {
    /// None, because tokens are required.
    AllowAll,
    /// Those of web pages of other origins.
    SameOrigin,
    /// Those of web pages of other origins, and those whose `Host` is not a loopback name.
    SameOriginOnLoopback,
}

impl BrowserPolicy {
    pub(crate) fn of(config: &Config) -> Self {
        match config.tokens.is_empty() {
            false => Self::AllowAll,
            // `--insecure` allows other addresses without tokens; such a broker may have any name.
            true if !config.listen.ip().is_loopback() => Self::SameOrigin,
            true => Self::SameOriginOnLoopback,
        }
    }

    pub(crate) fn check(self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        if self == Self::AllowAll {
            return Ok(());
        }
        // The common case: not a browser, and called by a loopback address.
        let is_plain = uri.authority().is_none() && !headers.contains_key(ORIGIN);
        if is_plain && headers.get_all(HOST).iter().all(is_loopback_address) {
            return Ok(());
        }
        // HTTP/2 has the host in the URI, HTTP/1 in a header, and some clients send both.
        let mut hosts: Vec<Authority> = uri.authority().cloned().into_iter().collect();
        for host in headers.get_all(HOST) {
            let host = Authority::try_from(host.as_bytes());
            hosts.push(host.map_err(|_| Problem::host_not_allowed())?);
        }
        let is_local = hosts.iter().all(|host| is_loopback(host.host()));
        if self == Self::SameOriginOnLoopback && !is_local {
            return Err(Problem::host_not_allowed());
        }
        let is_own = |origin: &[u8]| {
            let origin = Uri::try_from(origin).ok();
            let origin = origin.as_ref().and_then(Uri::authority);
            origin
                .is_some_and(|origin| !hosts.is_empty() && hosts.iter().all(|host| host == origin))
        };
        match headers.get_all(ORIGIN).iter().all(|origin| is_own(origin.as_bytes())) {
            true => Ok(()),
            false => Err(Problem::cross_origin()),
        }
    }
}

fn is_loopback_address(host: &HeaderValue) -> bool {
    let address = host.to_str().ok().and_then(|host| host.parse::<SocketAddr>().ok());
    address.is_some_and(|address| address.ip().is_loopback())
}

fn is_loopback(host: &str) -> bool {
    let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || plain.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_pages_of_other_origins_and_other_hosts_are_refused_and_programs_are_not() {
        use BrowserPolicy::{AllowAll, SameOrigin, SameOriginOnLoopback};
        for (policy, uri, host, origin, fine) in [
            (SameOriginOnLoopback, "/", Some("127.0.0.1:7400"), "", true),
            (SameOriginOnLoopback, "/", Some("127.8.9.1"), "", true),
            (SameOriginOnLoopback, "/", Some("LocalHost:7400"), "", true),
            (SameOriginOnLoopback, "/", Some("[::1]:7400"), "", true),
            (SameOriginOnLoopback, "/", None, "", true),
            (SameOriginOnLoopback, "http://localhost:7400/", None, "", true),
            (SameOriginOnLoopback, "/", Some("localhost.evil.example:7400"), "", false),
            (SameOriginOnLoopback, "/", Some("evil.example"), "", false),
            (SameOriginOnLoopback, "/", Some("192.168.0.7:7400"), "", false),
            (SameOriginOnLoopback, "/", Some("a b"), "", false),
            (SameOriginOnLoopback, "http://localhost:7400/", Some("evil.example"), "", false),
            (SameOriginOnLoopback, "http://evil.example:7400/", None, "", false),
            (SameOriginOnLoopback, "/", Some("localhost:7400"), "http://localhost:7400", true),
            (SameOriginOnLoopback, "/", Some("localhost:7400"), "http://localhost:3000", false),
            (SameOriginOnLoopback, "/", Some("localhost:7400"), "https://evil.example", false),
            (SameOriginOnLoopback, "/", Some("localhost:7400"), "null", false),
            (SameOriginOnLoopback, "/", Some("localhost:7400"), "file://", false),
            (SameOriginOnLoopback, "/", None, "http://localhost:7400", false),
            (SameOrigin, "/", Some("broker.example:7400"), "", true),
            (SameOrigin, "/", Some("broker.example:7400"), "http://broker.example:7400", true),
            (SameOrigin, "/", Some("broker.example:7400"), "http://evil.example", false),
            (AllowAll, "/", Some("broker.example"), "http://evil.example", true),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(host) = host {
                headers.insert(HOST, HeaderValue::from_static(host));
            }
            if !origin.is_empty() {
                headers.insert(ORIGIN, HeaderValue::from_static(origin));
            }
            let checked = policy.check(&uri.parse().unwrap(), &headers);
            assert_eq!(checked.is_ok(), fine, "{policy:?} {uri} {host:?} {origin:?}");
        }
    }
}
