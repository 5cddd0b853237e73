//! Answer rules: which responses of a webhook are a success, and which are a refusal.
//!
//! Without rules every 2xx is a success and 410 is a refusal. The form of the rules is checked
//! here; the webhook courier of the server compares them with a response, because only it reads
//! JSON.

use crate::Invalid;
use crate::limits::{EXPECTED_BYTES_MAX, EXPECTED_VALUES_MAX, STATUSES_MAX};

/// Which responses are a success, and which are a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct AnswerRules {
    success_statuses: Vec<u16>,
    success_json: Vec<ExpectedValue>,
    refuse_statuses: Vec<u16>,
}

/// A JSON value that a successful answer must have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExpectedValue {
    /// Where the value is: a JSON pointer (RFC 6901), like `/errcode`.
    pub pointer: String,
    /// The value as compact JSON text, like `0` or `"ok"`.
    pub value: String,
}

impl AnswerRules {
    /// Makes rules, after checking them. Fields of errors are relative to the webhook.
    pub fn new(
        success_statuses: Vec<u16>,
        success_json: Vec<ExpectedValue>,
        refuse_statuses: Vec<u16>,
    ) -> Result<Self, Invalid> {
        check_statuses("success.statuses", &success_statuses)?;
        check_statuses("refuse.statuses", &refuse_statuses)?;
        check_values(&success_json)?;
        if let Some(both) = success_statuses.iter().find(|it| refuse_statuses.contains(it)) {
            let problem = format!("{both} is in success.statuses too; a status is one of both");
            return Err(Invalid::new("refuse.statuses", problem));
        }
        Ok(Self { success_statuses, success_json, refuse_statuses })
    }

    /// Whether nothing differs from the defaults.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The statuses that are a success; empty means every 2xx.
    #[must_use]
    pub fn success_statuses(&self) -> &[u16] {
        &self.success_statuses
    }

    /// The values that a successful answer must all have.
    #[must_use]
    pub fn success_json(&self) -> &[ExpectedValue] {
        &self.success_json
    }

    /// The statuses, in addition to 410, after which no further attempt is made.
    #[must_use]
    pub fn refuse_statuses(&self) -> &[u16] {
        &self.refuse_statuses
    }

    /// Whether a status is a success, if the body is one as well.
    #[must_use]
    pub fn is_success(&self, status: u16) -> bool {
        match &*self.success_statuses {
            [] => (200..300).contains(&status),
            statuses => statuses.contains(&status),
        }
    }

    /// Whether no further attempt is made after a status.
    #[must_use]
    pub fn is_refusal(&self, status: u16) -> bool {
        let gone = status == 410 && !self.success_statuses.contains(&status);
        gone || self.refuse_statuses.contains(&status)
    }
}

fn check_statuses(field: &str, statuses: &[u16]) -> Result<(), Invalid> {
    if statuses.len() > STATUSES_MAX {
        let problem = format!("must have at most {STATUSES_MAX}, has {}", statuses.len());
        return Err(Invalid::new(field, problem));
    }
    match statuses.iter().find(|status| !(200..600).contains(*status)) {
        Some(status) => Err(Invalid::new(field, format!("must be from 200 to 599, is {status}"))),
        None => Ok(()),
    }
}

fn check_values(values: &[ExpectedValue]) -> Result<(), Invalid> {
    if values.len() > EXPECTED_VALUES_MAX {
        let problem = format!("must have at most {EXPECTED_VALUES_MAX}, has {}", values.len());
        return Err(Invalid::new("success.json", problem));
    }
    for ExpectedValue { pointer, value } in values {
        if !pointer.is_empty() && !pointer.starts_with('/') {
            let problem = format!("{pointer:?} is not a JSON pointer; it begins with /");
            return Err(Invalid::new("success.json", problem));
        }
        if pointer.len() > EXPECTED_BYTES_MAX || value.len() > EXPECTED_BYTES_MAX {
            let problem = format!("a pointer and a value have at most {EXPECTED_BYTES_MAX} bytes");
            return Err(Invalid::new("success.json", problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_success_a_refusal_or_a_failed_attempt() {
        let plain = AnswerRules::default();
        let rules = AnswerRules::new(vec![200, 404], vec![], vec![400]).unwrap();
        let gone_is_fine = AnswerRules::new(vec![410], vec![], vec![]).unwrap();
        for (rules, status, success, refusal) in [
            (&plain, 200, true, false),
            (&plain, 204, true, false),
            (&plain, 302, false, false),
            (&plain, 410, false, true),
            (&plain, 500, false, false),
            (&rules, 200, true, false),
            (&rules, 204, false, false),
            (&rules, 404, true, false),
            (&rules, 400, false, true),
            (&rules, 410, false, true),
            (&gone_is_fine, 410, true, false),
        ] {
            let got = (rules.is_success(status), rules.is_refusal(status));
            assert_eq!(got, (success, refusal), "{rules:?} {status}");
        }
    }

    #[test]
    fn rules_that_make_no_sense_name_the_field() {
        let value = |pointer: &str| ExpectedValue { pointer: pointer.into(), value: "0".into() };
        for (success, json, refuse, want) in [
            (vec![99], vec![], vec![], "success.statuses: must be from 200 to 599, is 99"),
            (vec![], vec![], vec![600], "refuse.statuses: must be from 200 to 599, is 600"),
            (vec![200; 33], vec![], vec![], "success.statuses: must have at most 32, has 33"),
            (
                vec![400],
                vec![],
                vec![400],
                "refuse.statuses: 400 is in success.statuses too; a status is one of both",
            ),
            (
                vec![],
                vec![value("errcode")],
                vec![],
                "success.json: \"errcode\" is not a JSON pointer; it begins with /",
            ),
        ] {
            let error = AnswerRules::new(success, json, refuse).unwrap_err();
            assert_eq!(error.to_string(), want);
        }
    }
}
