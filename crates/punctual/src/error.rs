//! How a failed command reports its error: one line and its causes, or one JSON object.
//!
//! Without `--json`, standard error gets `error: …` and one line per cause. With `--json` it gets
//! `{"error": …}`: the problem as the broker sent it, or an object with only a `detail`. A
//! backtrace is never printed. The exit code is the same in both cases. Errors of the command line
//! itself are reported by clap.

use std::fmt;
use std::io::Write as _;

use serde_json::{Map, Value, json};

use crate::cli::Style;

/// A response of a broker that is not a success.
#[derive(Debug)]
pub(crate) struct Refusal {
    detail: String,
    problem: Map<String, Value>,
}

impl Refusal {
    /// Keeps the problem as it was received. `detail` is used if the response is not a problem, for
    /// example because a proxy answered.
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

/// Prints an error for people. A closed standard error is ignored.
pub(crate) fn print(error: &anyhow::Error) {
    let text = text(error, &Style::Error.paint("error:"));
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints an error as one JSON object.
pub(crate) fn print_json(error: &anyhow::Error) {
    let _ = writeln!(std::io::stderr().lock(), "{}", object(error));
}

/// The error on the first line, then its causes. A cause that only repeats the line above is left
/// out.
fn text(error: &anyhow::Error, label: &str) -> String {
    let mut last = clean(&error.to_string());
    let mut text = format!("{label} {last}");
    for cause in error.chain().skip(1) {
        let cause = clean(&cause.to_string());
        if !last.contains(&cause) {
            text.push_str(&format!("\n  caused by: {cause}"));
        }
        last = cause;
    }
    text
}

/// Control characters of a response must not reach the terminal.
fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', " ")
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
    fn with_json_a_problem_stays_as_it_was_received() {
        let problem = json!({"type": "urn:punctual:x", "title": "X", "status": 422,
            "detail": "a: b", "field": "a"});
        let shown =
            |answer| object(&Refusal::new(502, answer, "it answered 502".to_owned()).into());
        assert_eq!(shown(Some(problem.clone())), json!({ "error": problem }));
        let unknown = json!({"error": {"status": 502, "detail": "it answered 502"}});
        assert_eq!(shown(None), unknown);
        assert_eq!(shown(Some(json!("a proxy"))), unknown);
        let error = anyhow!("no such host").context("no answer from http://x");
        let sentence = "no answer from http://x: no such host";
        assert_eq!(object(&error), json!({"error": {"detail": sentence}}));
    }

    #[test]
    fn an_error_is_one_line_and_each_cause_another() {
        let error = anyhow!("refused\u{1b}[2J").context("cannot connect").context("no answer");
        let shown = "error: no answer\n  caused by: cannot connect\n  caused by: refused [2J";
        assert_eq!(text(&error, "error:"), shown);
        let repeated = anyhow!("b").context("a: b");
        assert_eq!(text(&repeated, "error:"), "error: a: b");
    }
}
