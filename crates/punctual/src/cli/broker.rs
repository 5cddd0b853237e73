//! The way to a broker and back.
//!
//! In: a method, a path and a body. Out: the JSON that was answered, or the sentence in which the broker refused.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::failure::Refusal;

/// Longer than the longest long poll.
const TIMEOUT: Duration = Duration::from_secs(90);
/// A page of the heaviest tasks.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Which broker, and as whom.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Broker {
    /// Where the broker is.
    #[arg(
        long,
        env = "PUNCTUAL_BROKER",
        default_value = "http://127.0.0.1:7400",
        value_name = "URL"
    )]
    broker: String,

    /// Who asks.
    #[arg(long, env = "PUNCTUAL_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// Whom to believe that a broker with TLS is the right one: a file of certificates, instead of the public authorities.
    #[arg(long, env = "PUNCTUAL_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Print what the broker answered, as JSON; what goes wrong, too.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Broker {
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call("GET", path, &[], None)
    }

    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.call("DELETE", path, &[], None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call("POST", path, &[], Some(body))
    }

    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.broker.trim_end_matches('/'));
        let mut request = http::Request::builder().method(method).uri(&url);
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(body).with_context(|| format!("cannot ask {url}"))?;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            // A broker is asked itself, whatever the environment says of other sites.
            .proxy(None)
            .tls_config(self.tls()?)
            .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
            .build();
        let answer = ureq::Agent::from(config).run(request);
        let mut answer = answer.with_context(|| format!("no answer from {}", self.broker))?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.with_context(|| format!("no whole answer from {}", self.broker))?;
        let json: Option<Value> = serde_json::from_str(&text).ok();
        if !status.is_success() {
            let unknown = format!("{} answered {status}", self.broker);
            return Err(Refusal::new(status.as_u16(), json, unknown).into());
        }
        json.ok_or_else(|| anyhow!("{} did not answer in JSON: is it a broker?", self.broker))
    }
}

impl Broker {
    /// All brokers of its cluster; this one alone if it does not say, or if it is the only one. A broker that is asked by another address
    /// than its own is among them under its own, so that none is there twice.
    pub(crate) fn all(&self) -> Vec<Self> {
        let scheme = self.broker.split("://").next().filter(|it| *it == "https").unwrap_or("http");
        let said = self.get("/v1/topology").unwrap_or_default();
        let brokers = said["brokers"].as_array().into_iter().flatten();
        let addresses = brokers.filter_map(|broker| broker["address"].as_str());
        let at = |address: &str| Self { broker: format!("{scheme}://{address}"), ..self.clone() };
        let all: Vec<Self> = addresses.map(at).collect();
        if all.len() < 2 { vec![self.clone()] } else { all }
    }

    pub(crate) fn address(&self) -> &str {
        &self.broker
    }

    fn tls(&self) -> anyhow::Result<TlsConfig> {
        let Some(file) = &self.ca else {
            return Ok(TlsConfig::default());
        };
        let cannot = || format!("cannot read certificates from {}", file.display());
        let pem = std::fs::read(file).with_context(cannot)?;
        let mut certificates = Vec::new();
        for item in parse_pem(&pem) {
            if let PemItem::Certificate(certificate) = item.with_context(cannot)? {
                certificates.push(certificate);
            }
        }
        if certificates.is_empty() {
            bail!("{} has no certificate", file.display());
        }
        Ok(TlsConfig::builder().root_certs(RootCerts::from(certificates.into_iter())).build())
    }
}

/// A name as a part of a path or a query.
pub(crate) fn part(name: &str) -> String {
    let mut part = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            part.push(char::from(byte));
        } else {
            part.push_str(&format!("%{byte:02X}"));
        }
    }
    part
}

/// `?a=b&c=d` of those that are given.
pub(crate) fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let given = pairs.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let given: Vec<String> = given.map(|(name, value)| format!("{name}={}", part(value))).collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelled_so_that_they_stay_one_part() {
        for (name, spelled) in
            [("order-1", "order-1"), ("a/b?c=d", "a%2Fb%3Fc%3Dd"), ("ä", "%C3%A4")]
        {
            assert_eq!(part(name), spelled);
        }
        assert_eq!(query(&[("a", None)]), "");
        assert_eq!(query(&[("a", Some("x y")), ("b", None), ("c", Some("z"))]), "?a=x%20y&c=z");
    }
}
