//! Runs scenarios through the commands of the binary, each with `--json`.

use std::net::SocketAddr;
use std::process::Command;

use punctual_test_support::punctual_binary;
use serde_json::{Value, json};

use super::{Arguments, Driver, StepFailure, StepResult};

pub(super) fn driver(address: SocketAddr) -> Box<dyn Driver> {
    Box::new(CommandLine { address })
}

struct CommandLine {
    address: SocketAddr,
}

impl CommandLine {
    /// Runs a command. Returns the lines of JSON that it printed.
    fn lines(&self, words: &[String], token: Option<&str>) -> Result<Vec<Value>, StepFailure> {
        let mut command = Command::new(punctual_binary());
        // What follows `--` are names, so this is the first flag.
        let (verb, rest) = words.split_at(verb_words(words));
        command
            .args(verb)
            .arg("--json")
            .args(rest)
            .env("PUNCTUAL_BROKER", format!("http://{}", self.address));
        if let Some(token) = token {
            command.env("PUNCTUAL_TOKEN", token);
        }
        let output = command.output().map_err(|error| error.to_string())?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            let problem: Option<Value> = serde_json::from_str(&errors).ok();
            let problem =
                problem.map(|it| it["error"].clone()).filter(|it| it["status"].is_number());
            return Err(problem.map_or(StepFailure::Other(errors), StepFailure::Problem));
        }
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let json =
            |line: &str| serde_json::from_str(line).map_err(|error| error.to_string().into());
        printed.lines().map(json).collect()
    }

    fn run(&self, words: &[String], token: Option<&str>) -> StepResult {
        let lines = self.lines(words, token)?;
        Ok(lines.into_iter().next().unwrap_or_default())
    }
}

impl Driver for CommandLine {
    fn call(&mut self, verb: &str, args: &mut Arguments, token: Option<&str>) -> StepResult {
        let namespace = args.namespace();
        let mut words: Vec<String> = Vec::new();
        let command = match verb {
            "get" => "show",
            "fires" if args.0.contains_key("task") => "history",
            "cancel_many" => "cancel",
            other => other,
        };
        match verb {
            "get" | "cancel" | "pause" | "resume" | "fire" | "explain" | "touch" | "fires"
            | "list" | "forecast" => {
                words.extend([command.to_owned(), namespace]);
                let task = args.text("task");
                flags(&mut words, args)?;
                words.extend(task.into_iter().flat_map(|task| ["--".to_owned(), task]));
                return self.run(&words, token);
            }
            "cancel_many" => {
                words.extend([command.to_owned(), namespace]);
                let keys = args.texts("keys").ok_or("the command cancels several keys, not ids")?;
                words.push("--".to_owned());
                words.extend(keys);
                return self.run(&words, token);
            }
            "schedule" => {
                schedule(&mut words, namespace, args)?;
                return self.run(&words, token);
            }
            "dead" => words.extend(["dead".to_owned(), "list".to_owned(), namespace]),
            "redrive" => {
                words.extend(["dead".to_owned(), "redrive".to_owned(), namespace]);
                match args.texts("ids") {
                    Some(ids) => words.extend(ids),
                    None => flags(&mut words, args)?,
                }
            }
            "delete_dead" => {
                words.extend(["dead".to_owned(), "delete".to_owned(), namespace]);
                words.push(args.required("fire_id")?);
            }
            "stats" | "queues" | "workers" => words.extend([verb.to_owned(), namespace]),
            "topology" | "whoami" | "namespaces" => words.push(verb.to_owned()),
            "preview" => words.extend([verb.to_owned(), args.required("cron")?]),
            "rules" => words.extend(["rules".to_owned(), "list".to_owned(), namespace]),
            "work" => return self.work(&namespace, args, token),
            other => return Err(format!("there is no command for {other}").into()),
        }
        flags(&mut words, args)?;
        self.run(&words, token)
    }
}

impl CommandLine {
    /// `punctual listen` does the same with all deliveries.
    fn work(&self, namespace: &str, args: &mut Arguments, token: Option<&str>) -> StepResult {
        let handler = args.take("handler").unwrap_or_default();
        let [outcome] = handler.as_array().map(Vec::as_slice).unwrap_or_default() else {
            return Err("the command does the same with all deliveries".into());
        };
        let mut words = vec!["listen".to_owned(), namespace.to_owned(), args.required("queue")?];
        words.extend(["--max=1".to_owned(), format!("--count={}", args.required("count")?)]);
        match outcome["do"].as_str() {
            Some("ok") if outcome["result"].is_null() => {}
            Some("ok") => words.push(format!("--result={}", outcome["result"])),
            Some("error") => {
                words.push(format!("--fail={}", outcome["reason"].as_str().unwrap_or("failed")))
            }
            _ => return Err("the command acks or fails deliveries".into()),
        }
        Ok(json!({"handled": self.lines(&words, token)?}))
    }
}

/// How many words name the command.
fn verb_words(words: &[String]) -> usize {
    if ["dead", "rules"].contains(&words[0].as_str()) { 2 } else { 1 }
}

/// Adds the arguments that are left as flags of the same name.
fn flags(words: &mut Vec<String>, args: &mut Arguments) -> Result<(), StepFailure> {
    for (name, value) in std::mem::take(&mut args.0) {
        let name = name.replace('_', "-");
        match value {
            Value::Bool(true) => words.push(format!("--{name}")),
            Value::String(text) => words.push(format!("--{name}={text}")),
            Value::Number(number) => words.push(format!("--{name}={number}")),
            other => return Err(format!("no flag takes {name} {other}").into()),
        }
    }
    Ok(())
}

fn schedule(
    words: &mut Vec<String>,
    namespace: String,
    args: &mut Arguments,
) -> Result<(), StepFailure> {
    words.extend(["schedule".to_owned(), namespace]);
    let task = args.take("task").unwrap_or_default();
    let mut add = |name: &str, value: &str| words.push(format!("--{name}={value}"));
    if let Some(version) = args.text("if_match") {
        add("if-match", &version);
    }
    if let Some(key) = args.text("idempotency_key") {
        add("idempotency-key", &key);
    }
    for (name, value) in task.as_object().ok_or("a task is an object")? {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match name.as_str() {
            "payload" => add("payload", &value.to_string()),
            "paused" | "on_return" => {}
            "on_done" | "on_dead" => add(&name.replace('_', "-"), &callback(value)),
            "labels" => {
                for (label, value) in value.as_object().into_iter().flatten() {
                    add("label", &format!("{label}:{}", value.as_str().unwrap_or_default()));
                }
            }
            "dst" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    add(&format!("dst-{name}"), value.as_str().unwrap_or_default());
                }
            }
            "retry" => {
                for (name, value) in retry(value) {
                    add(name, &value);
                }
            }
            "target" => target(&mut add, value)?,
            other => add(&other.replace('_', "-"), &text),
        }
    }
    for name in ["paused", "on_return"] {
        if task[name] == json!(true) {
            words.push(format!("--{}", name.replace('_', "-")));
        }
    }
    if args.text("if_none_match").is_some() {
        words.push("--create-only".to_owned());
    }
    if let Some(key) = args.text("key") {
        words.extend(["--".to_owned(), key]);
    }
    Ok(())
}

fn callback(target: &Value) -> String {
    match target["queue"].as_str() {
        Some(queue) => format!("queue:{queue}"),
        None => target["http"]["url"].as_str().unwrap_or_default().to_owned(),
    }
}

fn retry(retry: &Value) -> Vec<(&'static str, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut flags = Vec::new();
    if !retry["attempts_max"].is_null() {
        flags.push(("attempts-max", retry["attempts_max"].to_string()));
    }
    if !retry["jitter"].is_null() {
        flags.push(("retry-jitter", retry["jitter"].to_string()));
    }
    let backoff = &retry["backoff"];
    if !backoff["fixed"].is_null() {
        flags.push(("backoff", format!("fixed:{}", text(&backoff["fixed"]))));
    }
    if let Some(list) = backoff["list"].as_array() {
        let pauses: Vec<String> = list.iter().map(text).collect();
        flags.push(("backoff", format!("list:{}", pauses.join(","))));
    }
    let it = &backoff["exponential"];
    if !it.is_null() {
        let (first, factor, max) = (text(&it["first"]), text(&it["factor"]), text(&it["max"]));
        flags.push(("backoff", format!("exponential:{first},{factor},{max}")));
    }
    flags
}

fn target(add: &mut impl FnMut(&str, &str), target: &Value) -> Result<(), StepFailure> {
    if let Some(queue) = target["queue"].as_str() {
        add("queue", queue);
        return Ok(());
    }
    let http = target["http"].as_object().ok_or("a target is a queue or a webhook")?;
    let statuses = |rule: &Value| {
        let all = rule["statuses"].as_array().into_iter().flatten();
        all.map(Value::to_string).collect::<Vec<_>>().join(",")
    };
    for (name, value) in http {
        match name.as_str() {
            "url" => add("to", value.as_str().unwrap_or_default()),
            "method" => add("method", value.as_str().unwrap_or_default()),
            "headers" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    add("header", &format!("{name}:{}", value.as_str().unwrap_or_default()));
                }
            }
            "success" => {
                add("success-status", &statuses(value));
                for (pointer, value) in value["json"].as_object().into_iter().flatten() {
                    add("success-json", &format!("{pointer}={value}"));
                }
            }
            "refuse" => add("refuse-status", &statuses(value)),
            other => return Err(format!("no flag takes {other}").into()),
        }
    }
    Ok(())
}
