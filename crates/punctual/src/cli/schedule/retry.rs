//! The retry flags of `punctual schedule`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use punctual_core::{ATTEMPTS_MAX, Backoff, Jitter, RetryPolicy, format_duration, parse_duration};
use serde_json::{Map, Value, json};

/// The factor and the longest pause of an exponential backoff, as in the API.
const FACTOR_DEFAULT: f64 = 2.0;
const PAUSE_MAX_DEFAULT: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Retry")]
pub(super) struct RetryArgs {
    /// How many attempts a fire has in total
    #[arg(long, alias = "attempts", value_name = "COUNT")]
    attempts_max: Option<u16>,
    /// Pause before retries: fixed:3s, exponential:1s,2,5m (first, factor, max) or list:2m,10m,1h
    #[arg(long, value_name = "KIND:…", value_parser = parse_backoff)]
    backoff: Option<Backoff>,
    /// Shorten or lengthen each pause by a random share up to this, 0 to 1
    #[arg(long, value_name = "SHARE")]
    retry_jitter: Option<f64>,
}

impl RetryArgs {
    /// The policy as JSON; `None` if no flag was given.
    pub(super) fn body(&self) -> anyhow::Result<Option<Value>> {
        let mut retry = Map::new();
        if let Some(attempts) = self.attempts_max {
            retry.insert("attempts_max".to_owned(), json!(attempts));
        }
        if let Some(backoff) = &self.backoff {
            retry.insert("backoff".to_owned(), backoff_json(backoff));
        }
        if let Some(jitter) = self.retry_jitter {
            retry.insert("jitter".to_owned(), json!(jitter));
        }
        Ok((!retry.is_empty()).then(|| retry.into()))
    }

    /// The policy with defaults, checked.
    pub(super) fn policy(&self) -> anyhow::Result<RetryPolicy> {
        let mut policy = RetryPolicy::default();
        if let Some(attempts) = self.attempts_max {
            policy.attempts_max = attempts;
        }
        if let Some(backoff) = &self.backoff {
            policy.backoff = backoff.clone();
        }
        if let Some(jitter) = self.retry_jitter {
            policy.jitter = Jitter::from_share(jitter).context("--retry-jitter")?;
        }
        if !(1..=ATTEMPTS_MAX).contains(&policy.attempts_max) {
            bail!("--attempts-max must be from 1 to {ATTEMPTS_MAX}");
        }
        Ok(policy)
    }
}

fn backoff_json(backoff: &Backoff) -> Value {
    match backoff {
        Backoff::Fixed(pause) => json!({ "fixed": format_duration(*pause) }),
        Backoff::Exponential { first, factor_thousandths, max } => json!({ "exponential": {
            "first": format_duration(*first),
            "factor": f64::from(*factor_thousandths) / 1000.0,
            "max": format_duration(*max),
        }}),
        Backoff::List(pauses) => {
            let pauses: Vec<String> = pauses.iter().copied().map(format_duration).collect();
            json!({ "list": pauses })
        }
    }
}

/// Reads `fixed:3s`, `exponential:1s,2,5m` or `list:2m,10m,1h`.
fn parse_backoff(text: &str) -> Result<Backoff, String> {
    const FORM: &str =
        "must be fixed:DURATION, exponential:FIRST[,FACTOR[,MAX]] or list:DURATION,…";
    let (kind, rest) = text.split_once(':').ok_or(FORM)?;
    let parts: Vec<&str> = rest.split(',').map(str::trim).collect();
    let pause = |text: &str| parse_duration(text).map_err(|error| format!("{text:?} {error}"));
    match (kind, parts.as_slice()) {
        ("fixed", [only]) => Ok(Backoff::Fixed(pause(only)?)),
        ("exponential", [first, more @ ..]) if more.len() <= 2 => Ok(Backoff::Exponential {
            first: pause(first)?,
            factor_thousandths: factor(more.first())?,
            max: more.get(1).map_or(Ok(PAUSE_MAX_DEFAULT), |max| pause(max))?,
        }),
        ("list", pauses) => {
            Ok(Backoff::List(pauses.iter().map(|text| pause(text)).collect::<Result<_, _>>()?))
        }
        _ => Err(FORM.to_owned()),
    }
}

fn factor(text: Option<&&str>) -> Result<u32, String> {
    let factor = text.map_or(Ok(FACTOR_DEFAULT), |text| text.parse());
    let allowed = "the factor must be a number from 1 to 100";
    let thousandths = (factor.map_err(|_| allowed)? * 1000.0).round();
    if !(1000.0..=100_000.0).contains(&thousandths) {
        return Err(allowed.to_owned());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just checked")]
    Ok(thousandths as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backoff_is_read_in_three_forms() {
        for (text, json) in [
            ("fixed:3s", json!({"fixed": "3s"})),
            ("exponential:1s", json!({"exponential": {"first": "1s", "factor": 2.0, "max": "5m"}})),
            (
                "exponential:500ms,1.5,1h",
                json!({"exponential": {"first": "500ms", "factor": 1.5, "max": "1h"}}),
            ),
            ("list:2m,10m, 1h", json!({"list": ["2m", "10m", "1h"]})),
        ] {
            assert_eq!(backoff_json(&parse_backoff(text).unwrap()), json, "{text}");
        }
        for (text, problem) in [
            ("3s", "must be fixed:"),
            ("fixed:3s,4s", "must be fixed:"),
            ("linear:1s", "must be fixed:"),
            ("fixed:soon", "must be a duration"),
            ("exponential:1s,0.5", "from 1 to 100"),
            ("exponential:1s,fast", "from 1 to 100"),
            ("exponential:1s,2,5m,6m", "must be fixed:"),
            ("list:", "must be a duration"),
        ] {
            let error = parse_backoff(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
