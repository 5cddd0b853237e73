//! Calls a broker over HTTP, and returns the JSON of its response, or a [`Refusal`].

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde::Serialize;
use serde_json::Value;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::error::Refusal;

/// How long a call may take: longer than the longest long poll.
const TIMEOUT: Duration = Duration::from_secs(90);
/// The largest response: a page of tasks with large payloads.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// The broker to call, and the credentials.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Broker")]
pub(crate) struct BrokerArgs {
    /// URL of the broker
    #[arg(
        long,
        env = "PUNCTUAL_BROKER",
        default_value = "http://127.0.0.1:7400",
        value_name = "URL"
    )]
    broker: String,

    /// Token of the namespace
    #[arg(long, env = "PUNCTUAL_TOKEN", hide_env_values = true, value_name = "SECRET")]
    token: Option<String>,

    /// PEM file of the certificate authority to trust for https://, instead of the public ones
    #[arg(long, env = "PUNCTUAL_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Print the response of the broker, or the error, as one line of JSON
    #[arg(long, help_heading = "Options")]
    pub(crate) json: bool,
}

impl BrokerArgs {
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call("GET", path, &[], None::<&Value>)
    }

    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.call("DELETE", path, &[], None::<&Value>)
    }

    pub(crate) fn post(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Value> {
        self.call("POST", path, &[], Some(body))
    }

    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<Value> {
        let body = body.map(serde_json::to_vec).transpose().context("cannot encode the request")?;
        let mut headers = headers.to_vec();
        if body.is_some() {
            headers.push(("content-type", "application/json".to_owned()));
        }
        self.send(method, path, &headers, body.unwrap_or_default())
    }

    /// Sends a body as it is.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Vec<u8>,
    ) -> anyhow::Result<Value> {
        let answer = self.open(method, path, headers, body, Some(TIMEOUT))?;
        let status = answer.status();
        let text = self.text(answer)?;
        let json: Option<Value> = serde_json::from_str(&text).ok();
        if !status.is_success() {
            return Err(self.refusal(status, json));
        }
        json.ok_or_else(|| {
            anyhow!("{} did not answer with JSON; is it a Punctual broker?", self.broker)
        })
    }

    /// Opens a stream of server-sent events, and returns its lines.
    pub(crate) fn lines(&self, path: &str) -> anyhow::Result<impl BufRead + use<>> {
        let answer = self.open("GET", path, &[], Vec::new(), None)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(BufReader::new(answer.into_body().into_reader()));
        }
        Err(self.refusal(status, serde_json::from_str(&self.text(answer)?).ok()))
    }

    fn refusal(&self, status: http::StatusCode, problem: Option<Value>) -> anyhow::Error {
        let detail = format!("{} answered {status}", self.broker);
        Refusal::new(status.as_u16(), problem, detail).into()
    }

    fn text(&self, mut answer: http::Response<ureq::Body>) -> anyhow::Result<String> {
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        text.with_context(|| format!("incomplete answer from {}", self.broker))
    }

    /// Sends a request, and returns the answer when its head is here. Without a timeout, the body
    /// may take any time.
    fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Vec<u8>,
        timeout: Option<Duration>,
    ) -> anyhow::Result<http::Response<ureq::Body>> {
        let url = format!("{}{path}", self.broker.trim_end_matches('/'));
        let mut request = http::Request::builder().method(method).uri(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(body).with_context(|| format!("cannot call {url}"))?;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(timeout)
            .timeout_recv_response(Some(TIMEOUT))
            // Proxies of the environment are for other sites.
            .proxy(None)
            .tls_config(self.tls()?)
            .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
            .build();
        let answer = ureq::Agent::from(config).run(request);
        answer.with_context(|| format!("no answer from {}", self.broker))
    }
}

impl BrokerArgs {
    /// Returns all brokers of the cluster, by the addresses that they advertise, so that none is
    /// listed twice. Returns only this one if it is alone or does not answer.
    pub(crate) fn all(&self) -> Vec<Self> {
        let scheme = self.broker.split("://").next().filter(|it| *it == "https").unwrap_or("http");
        let topology = self.get("/v1/topology").unwrap_or_default();
        let brokers = topology["brokers"].as_array().into_iter().flatten();
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

/// Encodes a name as one segment of a path or one value of a query.
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

/// `?a=b&c=d` of the pairs that have a value; empty if none has.
pub(crate) fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let given = pairs.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let given: Vec<String> = given.map(|(name, value)| format!("{name}={}", part(value))).collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_encoded_as_one_segment() {
        for (name, encoded) in
            [("order-1", "order-1"), ("a/b?c=d", "a%2Fb%3Fc%3Dd"), ("ä", "%C3%A4")]
        {
            assert_eq!(part(name), encoded);
        }
        assert_eq!(query(&[("a", None)]), "");
        assert_eq!(query(&[("a", Some("x y")), ("b", None), ("c", Some("z"))]), "?a=x%20y&c=z");
    }
}
