//! `punctual cancel` and `punctual touch`: the commands that take one task or many.
//!
//! One task is named by key or id and answered as a whole. Many are named by arguments, or by the
//! lines of a file; they are sent in batches, and each has its own result.

use anyhow::bail;
use serde_json::{Map, Value, json};

use super::broker::{BrokerArgs, part};
use super::input::{read_file, read_json_text};
use super::output;
use super::tasks::time;

/// Names of one call: the broker takes no more.
const NAMES_MAX: usize = 10_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual cancel shop order-42
  punctual cancel shop order-42 order-43 order-44
  punctual cancel shop --ids 01m7nepmc90000000400000006 01m7nepmc90000000400000007
  punctual list shop --label campaign:7 --json | jq -r '.tasks[].id' |
    punctual cancel shop --ids --file -")]
pub(crate) struct CancelArgs {
    /// The namespace
    namespace: String,
    /// Key or id of the task, or several keys
    #[arg(required_unless_present = "file")]
    tasks: Vec<String>,
    /// The names are ids, not keys
    #[arg(long)]
    ids: bool,
    /// File with one key, or with --ids one id, per line; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "tasks")]
    file: Option<String>,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl CancelArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let namespace = part(&self.namespace);
        if let ([task], false) = (self.tasks.as_slice(), self.ids) {
            let path = format!("/v1/{namespace}/tasks/{}", part(task));
            let answer = self.broker.delete(&path)?;
            return output::print(&self.broker, &answer, output::fields);
        }
        let (names, column) = match self.ids {
            true => ("ids", "id"),
            false => ("keys", "key"),
        };
        let mut results = Vec::new();
        for batch in names_of(&self.tasks, self.file.as_deref())?.chunks(NAMES_MAX) {
            let mut answer =
                self.broker.post(&format!("/v1/{namespace}/cancel"), &json!({ names: batch }))?;
            if let Value::Array(batch) = answer["results"].take() {
                results.extend(batch);
            }
        }
        output::print(&self.broker, &json!({ "results": results }), |answer| {
            let columns = [column, "result", "attempt", "fired_at", "problem.detail"];
            output::rows(&answer["results"], &columns)
        })
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual touch shop order-42 --in 30m
  punctual touch fleet device-7
  punctual touch fleet device-7 --within 1h
  punctual touch fleet device-7 device-8 device-9
  punctual touch fleet device-7 --create '{\"within\": \"48h\", \"target\": {\"queue\": \"q\"}}'
  punctual touch fleet --file seen.txt --create @watch.json")]
pub(crate) struct TouchArgs {
    /// The namespace
    namespace: String,
    /// Key or id of the task, or several keys
    #[arg(required_unless_present = "file")]
    tasks: Vec<String>,
    /// File with one key per line; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "tasks")]
    file: Option<String>,
    /// New due time of a task that fires once, from now: 15m, 1h30m, 30d
    #[arg(long = "in", id = "in", value_name = "DURATION", conflicts_with = "at")]
    r#in: Option<String>,
    /// New due time of a task that fires once: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Move the due time of a watch to this long from now, this time only
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["in", "at"])]
    within: Option<String>,
    /// Task as JSON, without a key, that is created for each key without a task; @FILE reads it
    /// from a file
    #[arg(long, value_name = "JSON")]
    create: Option<String>,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl TouchArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut body = match (&self.r#in, &self.at, &self.within) {
            (Some(delay), ..) => json!({ "in": delay }),
            (_, Some(at), _) => json!({ "at": time(at) }),
            (.., Some(within)) => json!({ "within": within }),
            (None, None, None) => json!({}),
        };
        let namespace = part(&self.namespace);
        if let ([task], None) = (self.tasks.as_slice(), &self.create) {
            let path = format!("/v1/{namespace}/tasks/{}/touch", part(task));
            let task = self.broker.post(&path, &body)?;
            return output::print(&self.broker, &task, output::task);
        }
        if let Some(create) = &self.create {
            body["create"] = read_json_text("--create", create)?;
        }
        let mut all = TouchTotals::default();
        for batch in names_of(&self.tasks, self.file.as_deref())?.chunks(NAMES_MAX) {
            body["keys"] = json!(batch);
            all.add(self.broker.post(&format!("/v1/{namespace}/touch"), &body)?);
        }
        output::print(&self.broker, &all.answer(), touched_text)?;
        match all.untouched() {
            0 => Ok(()),
            1 => bail!("one key was not touched"),
            count => bail!("{count} keys were not touched"),
        }
    }
}

/// The answers to several batches together.
#[derive(Debug, Default)]
struct TouchTotals {
    touched: u64,
    created: u64,
    missing: Vec<Value>,
    problems: Vec<Value>,
}

impl TouchTotals {
    fn add(&mut self, mut answer: Value) {
        self.touched += answer["touched"].as_u64().unwrap_or_default();
        self.created += answer["created"].as_u64().unwrap_or_default();
        for (name, all) in [("missing", &mut self.missing), ("problems", &mut self.problems)] {
            if let Some(Value::Array(more)) = answer.get_mut(name).map(Value::take) {
                all.extend(more);
            }
        }
    }

    fn untouched(&self) -> usize {
        self.missing.len() + self.problems.len()
    }

    /// In the form of the API.
    fn answer(&self) -> Value {
        let mut answer = Map::new();
        answer.insert("touched".to_owned(), json!(self.touched));
        answer.insert("created".to_owned(), json!(self.created));
        answer.insert("missing".to_owned(), json!(self.missing));
        if !self.problems.is_empty() {
            answer.insert("problems".to_owned(), json!(self.problems));
        }
        answer.into()
    }
}

fn touched_text(answer: &Value) -> String {
    let mut text = format!("touched {}, created {}", answer["touched"], answer["created"]);
    let each = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    for key in each("missing") {
        text.push_str(&format!("\n{}: there is no task with this key", key_text(&key)));
    }
    for problem in each("problems") {
        let detail = problem["problem"]["detail"].as_str().unwrap_or_default();
        text.push_str(&format!("\n{}: {}", key_text(&problem["key"]), output::clean(detail)));
    }
    text
}

fn key_text(key: &Value) -> String {
    output::clean(key.as_str().unwrap_or_default())
}

/// The names that were given as arguments, or those in the lines of a file.
fn names_of(given: &[String], file: Option<&str>) -> anyhow::Result<Vec<String>> {
    let Some(file) = file else { return Ok(given.to_vec()) };
    let Ok(text) = String::from_utf8(read_file(file)?) else {
        bail!("{file} must be text, with one name per line");
    };
    let names = text.lines().map(|line| line.trim_end_matches('\r'));
    let names: Vec<String> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.is_empty() {
        bail!("{file} has no names; it must have one per line");
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_to_batches_of_touches_add_up() {
        let mut all = TouchTotals::default();
        all.add(json!({"touched": 2, "created": 1, "missing": ["a"]}));
        let problem = json!({"key": "b\u{1b}", "problem": {"detail": "a series"}});
        all.add(json!({"touched": 1, "created": 0, "missing": [], "problems": [problem]}));
        assert_eq!(all.untouched(), 2);
        let answer = all.answer();
        let want =
            json!({"touched": 3, "created": 1, "missing": ["a"], "problems": [problem.clone()]});
        assert_eq!(answer, want);
        let text = "touched 3, created 1\na: there is no task with this key\nb : a series";
        assert_eq!(touched_text(&answer), text);
    }
}
