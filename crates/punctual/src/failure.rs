//! Failures for machines: with `--json`, what went wrong is one JSON object on standard error.
//!
//! In: the error of any command. Out: `{"error": …}` with the problem as a broker told it, or with `detail` alone where none was told.
//! Not here: the exit code, which is the same with and without `--json`, and a wrong command line, of which clap tells in its own way.

use std::fmt;
use std::io::Write as _;

use serde_json::{Map, Value, json};

/// What a broker answered that is no success.
#[derive(Debug)]
pub(crate) struct Refusal {
    detail: String,
    problem: Map<String, Value>,
}

impl Refusal {
    /// Takes the problem as it came. Where something else than a broker answered, `detail` says what is known.
    pub(crate) fn new(status: u16, answer: Option<Value>, detail: String) -> Self {
        let mut problem = match answer {
            Some(Value::Object(problem)) => problem,
            _ => Map::new(),
        };
        let detail = problem.get("detail").and_then(Value::as_str).map_or(detail, str::to_owned);
        problem.insert("detail".to_owned(), json!(detail));
        problem.entry("status").or_insert_with(|| json!(status));
        Self { detail, problem }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Refusal {}

/// Prints a failure. Where nobody reads, there is nobody to tell.
pub(crate) fn print(error: &anyhow::Error) {
    let _ = writeln!(std::io::stderr().lock(), "{}", object(error));
}

fn object(error: &anyhow::Error) -> Value {
    match error.downcast_ref::<Refusal>() {
        Some(refusal) => json!({ "error": refusal.problem }),
        None => json!({ "error": { "detail": format!("{error:#}") } }),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_problem_is_told_as_it_came_and_anything_else_in_one_sentence() {
        let problem = json!({"type": "urn:punctual:x", "title": "X", "status": 422, "detail": "a: b", "field": "a"});
        let told = |answer| object(&Refusal::new(502, answer, "it answered 502".to_owned()).into());
        assert_eq!(told(Some(problem.clone())), json!({ "error": problem }));
        let unknown = json!({"error": {"status": 502, "detail": "it answered 502"}});
        assert_eq!(told(None), unknown);
        assert_eq!(told(Some(json!("a proxy"))), unknown);
        let error = anyhow!("no such host").context("no answer from http://x");
        let sentence = "no answer from http://x: no such host";
        assert_eq!(object(&error), json!({"error": {"detail": sentence}}));
    }
}
