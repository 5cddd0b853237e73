//! Browsers: what a web page may not do to a broker that asks nobody who they are.
//!
//! Such a broker listens on loopback and trusts everybody on this machine. A page from anywhere, in a browser on this machine, is not meant by that:
//! it could schedule webhooks from here. Browsers say in `Origin` whose page it is; and a page whose own name was made to point at
//! 127.0.0.1 (DNS rebinding) is betrayed by `Host`. Programs that are no browsers send no `Origin`, and call a broker on loopback by a loopback name.
//! In: the head of a request. Out: nothing, or the problem. A broker with tokens needs none of this: no page has a token.

use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri};

use crate::api::Problem;
use crate::config::Config;

/// Whom a broker takes for a stranger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strangers {
    /// Nobody: whoever calls has to say who they are.
    None,
    /// Pages of others.
    Pages,
    /// Pages of others, and whoever calls a broker on loopback by a name that is none of loopback.
    PagesAndNames,
}

impl Strangers {
    pub(crate) fn to(config: &Config) -> Self {
        match config.tokens.is_empty() {
            false => Self::None,
            // Who listens beyond loopback without tokens has said so, and may have any name there.
            true if !config.listen.ip().is_loopback() => Self::Pages,
            true => Self::PagesAndNames,
        }
    }

    pub(crate) fn check(self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        if self == Self::None {
            return Ok(());
        }
        // No browser, by an address of loopback: nearly everybody.
        let is_plain = uri.authority().is_none() && !headers.contains_key(ORIGIN);
        if is_plain && headers.get_all(HOST).iter().all(is_loopback_address) {
            return Ok(());
        }
        // HTTP/2 names the place in the URI, HTTP/1 in a header; some say it twice.
        let mut places: Vec<Authority> = uri.authority().cloned().into_iter().collect();
        for host in headers.get_all(HOST) {
            let place = Authority::try_from(host.as_bytes());
            places.push(place.map_err(|_| Problem::strange_host())?);
        }
        if self == Self::PagesAndNames && !places.iter().all(|place| is_loopback(place.host())) {
            return Err(Problem::strange_host());
        }
        let own = |origin: &[u8]| {
            let origin = Uri::try_from(origin).ok();
            let origin = origin.as_ref().and_then(Uri::authority);
            origin.is_some_and(|origin| !places.is_empty() && places.iter().all(|it| it == origin))
        };
        match headers.get_all(ORIGIN).iter().all(|origin| own(origin.as_bytes())) {
            true => Ok(()),
            false => Err(Problem::strange_origin()),
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
    fn pages_of_others_and_strange_names_are_refused_and_programs_are_not() {
        use Strangers::{None, Pages, PagesAndNames};
        for (strangers, uri, host, origin, fine) in [
            (PagesAndNames, "/", Some("127.0.0.1:7400"), "", true),
            (PagesAndNames, "/", Some("127.8.9.1"), "", true),
            (PagesAndNames, "/", Some("LocalHost:7400"), "", true),
            (PagesAndNames, "/", Some("[::1]:7400"), "", true),
            (PagesAndNames, "/", Option::None, "", true),
            (PagesAndNames, "http://localhost:7400/", Option::None, "", true),
            (PagesAndNames, "/", Some("localhost.evil.example:7400"), "", false),
            (PagesAndNames, "/", Some("evil.example"), "", false),
            (PagesAndNames, "/", Some("192.168.0.7:7400"), "", false),
            (PagesAndNames, "/", Some("a b"), "", false),
            (PagesAndNames, "http://localhost:7400/", Some("evil.example"), "", false),
            (PagesAndNames, "http://evil.example:7400/", Option::None, "", false),
            (PagesAndNames, "/", Some("localhost:7400"), "http://localhost:7400", true),
            (PagesAndNames, "/", Some("localhost:7400"), "http://localhost:3000", false),
            (PagesAndNames, "/", Some("localhost:7400"), "https://evil.example", false),
            (PagesAndNames, "/", Some("localhost:7400"), "null", false),
            (PagesAndNames, "/", Some("localhost:7400"), "file://", false),
            (PagesAndNames, "/", Option::None, "http://localhost:7400", false),
            (Pages, "/", Some("broker.example:7400"), "", true),
            (Pages, "/", Some("broker.example:7400"), "http://broker.example:7400", true),
            (Pages, "/", Some("broker.example:7400"), "http://evil.example", false),
            (None, "/", Some("broker.example"), "http://evil.example", true),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(host) = host {
                headers.insert(HOST, HeaderValue::from_static(host));
            }
            if !origin.is_empty() {
                headers.insert(ORIGIN, HeaderValue::from_static(origin));
            }
            let checked = strangers.check(&uri.parse().unwrap(), &headers);
            assert_eq!(checked.is_ok(), fine, "{strangers:?} {uri} {host:?} {origin:?}");
        }
    }
}
