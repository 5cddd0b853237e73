//! `punctual verify`: checks the signature of a webhook, without a broker.
//!
//! The check is that of the Rust client, so the command shows what a receiver should see.

use std::collections::HashMap;

use anyhow::{Context as _, anyhow, bail};
use punctual_client::webhook::Verifier;
use punctual_core::{Timestamp, parse_duration};
use serde_json::json;

use super::input::{read_file, read_secret};
use super::output;
use super::time::now;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual verify --secret @webhook.key --headers headers.txt < body.json
  punctual verify --body body.json --header webhook-id:01m7nepmc90000000400000006-01m7nepmc9 \\
    --header webhook-timestamp:1799056800 --header 'webhook-signature:v1,r36gUai…'")]
pub(crate) struct VerifyArgs {
    /// Secret that signs the webhooks, whsec_…, or @FILE to read it from a file; two during a
    /// rotation, separated by a space
    #[arg(long, env = "PUNCTUAL_WEBHOOK_SECRET", hide_env_values = true)]
    secret: String,
    /// Header of the webhook; may be repeated. webhook-id, webhook-timestamp and webhook-signature
    /// are needed
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// File with the headers, one per line, as a client or a log shows them
    #[arg(long, value_name = "FILE")]
    headers: Option<String>,
    /// File with the body, byte by byte as it was received; - for standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    body: String,
    /// Check as if it were this time: RFC 3339, or milliseconds since 1970; now if not given
    #[arg(long, value_name = "TIME", value_parser = time)]
    now: Option<Timestamp>,
    /// How far webhook-timestamp may be from now
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    tolerance: String,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

impl VerifyArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let tolerance = parse_duration(&self.tolerance);
        let tolerance = tolerance.map_err(|error| anyhow!("--tolerance {error}"))?;
        let verifier = Verifier::new(&read_secret(&self.secret)?).context("--secret")?;
        let headers = self.all_headers()?;
        let body = read_file(&self.body)?;
        let header = |name: &str| headers.get(name).map(String::as_str);
        let at = self.now.unwrap_or_else(now).as_millis();
        let at = punctual_client::Timestamp::from_millis(at);
        let result = verifier.tolerance(tolerance).verify(header, &body, at);
        let answer = match &result {
            Ok(()) => json!({ "valid": true }),
            Err(reason) => json!({ "valid": false, "reason": reason.to_string() }),
        };
        match (self.json, &result) {
            (true, _) => output::print_line(&answer.to_string())?,
            (false, Ok(())) => output::print_line("valid")?,
            (false, Err(_)) => {}
        }
        result.context("the webhook is not valid")
    }

    /// All headers, by their names in lower case.
    fn all_headers(&self) -> anyhow::Result<HashMap<String, String>> {
        let mut all = HashMap::new();
        if let Some(file) = &self.headers {
            if file == "-" && self.body == "-" {
                bail!("--headers and --body cannot both be standard input");
            }
            let text = read_file(file)?;
            // Other headers may be in any encoding.
            let text = String::from_utf8_lossy(&text);
            // A line without a colon is that of the request or the status.
            all.extend(text.lines().filter_map(|line| header(line).ok()));
        }
        all.extend(self.header.iter().cloned());
        if all.is_empty() {
            bail!("give the headers of the webhook with --header or --headers");
        }
        Ok(all)
    }
}

/// Parses `NAME:VALUE`. The name becomes lower case.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("must be NAME:VALUE")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

fn time(text: &str) -> Result<Timestamp, String> {
    match text.parse::<u64>() {
        Ok(millis) => Timestamp::try_from_millis(millis.into()).map_err(|error| error.to_string()),
        Err(_) => Timestamp::parse_rfc3339(text).map_err(|error| error.to_string()),
    }
}
