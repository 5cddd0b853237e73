//! Runs scenarios through the commands of the binary, each with `--json`.
//!
//! A command that has printed an answer and then fails, because a token is stale or a line is
//! wrong, has answered. What the flags of `schedule` refuse before a call is sent with `--file`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use punctual_test_support::punctual_binary;
use serde_json::{Value, json};

use super::{Arguments, Driver, StepFailure, StepResult};

/// The most pages of a list: no scenario has so many.
const PAGES_MAX: usize = 1_000;
/// Bytes of an argument: the system takes no longer ones.
const ARGUMENT_BYTES_MAX: usize = 100_000;

/// A command has the address of one broker.
pub(super) fn driver(addresses: &[SocketAddr]) -> Box<dyn Driver> {
    Box::new(CommandLine { address: addresses[0] })
}

struct CommandLine {
    address: SocketAddr,
}

/// What a command gets.
#[derive(Default)]
struct CommandInput<'a> {
    token: Option<&'a str>,
    stdin: String,
}

impl CommandLine {
    /// Runs a command. Returns the lines of JSON that it printed.
    fn lines(&self, words: &[String], input: &CommandInput) -> Result<Vec<Value>, StepFailure> {
        let mut command = Command::new(punctual_binary());
        // What follows `--` are names, so this is the first flag.
        let (verb, rest) = words.split_at(verb_words(words));
        command
            .args(verb)
            .arg("--json")
            .args(rest)
            .env("PUNCTUAL_BROKER", format!("http://{}", self.address))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(token) = input.token {
            command.env("PUNCTUAL_TOKEN", token);
        }
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let mut stdin = child.stdin.take().ok_or("no standard input")?;
        // A command that reads nothing may have ended.
        let _ = stdin.write_all(input.stdin.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() && output.stdout.is_empty() {
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
        self.run_with(words, &CommandInput { token, ..CommandInput::default() })
    }

    fn run_with(&self, words: &[String], input: &CommandInput) -> StepResult {
        let lines = self.lines(words, input)?;
        Ok(lines.into_iter().next().unwrap_or_default())
    }
}

impl Driver for CommandLine {
    fn call(&mut self, verb: &str, args: &mut Arguments, token: Option<&str>) -> StepResult {
        let namespace = args.namespace();
        let mut words: Vec<String> = Vec::new();
        match verb {
            "fires" if !args.0.contains_key("task") => {
                return self.pages("fires", &["fires", &namespace], args, token);
            }
            "list" => return self.pages("tasks", &["list", &namespace], args, token),
            "dead" => return self.pages("dead", &["dead", "list", &namespace], args, token),
            "get" | "cancel" | "pause" | "resume" | "fire" | "explain" | "touch" | "fires"
            | "forecast" => {
                let command = match verb {
                    "get" => "show",
                    "fires" => "history",
                    other => other,
                };
                words.extend([command.to_owned(), namespace]);
                let task = args.text("task");
                flags(&mut words, args)?;
                words.extend(task.into_iter().flat_map(|task| ["--".to_owned(), task]));
                return self.run(&words, token);
            }
            "schedule" => return self.schedule(&namespace, args, token),
            "schedule_many" => return self.schedule_many(&namespace, args, token),
            "touch_many" | "cancel_many" => return self.many(verb, &namespace, args, token),
            "put_rule" => return self.put_rule(&namespace, args, token),
            "lease" => {
                words.extend(["lease".to_owned(), namespace, args.required("queue")?]);
            }
            "ack" => {
                words.extend(["ack".to_owned(), namespace, args.required("queue")?]);
                ack(&mut words, args)?;
            }
            "fail" | "refuse" | "extend" => {
                words.extend([verb.to_owned(), namespace, args.required("queue")?]);
                words.push(args.required("token")?);
                words.push(args.required(if verb == "extend" { "lease" } else { "reason" })?);
            }
            "verify" => return self.verify(args),
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
            "stats" | "queues" | "lanes" | "workers" => words.extend([verb.to_owned(), namespace]),
            "topology" | "whoami" | "namespaces" => words.push(verb.to_owned()),
            "preview" => words.extend([verb.to_owned(), args.required("cron")?]),
            "rules" => words.extend(["rules".to_owned(), "list".to_owned(), namespace]),
            "delete_rule" => {
                words.extend(["rules".to_owned(), "delete".to_owned(), namespace]);
                words.push(args.required("prefix")?);
            }
            "work" => return self.work(&namespace, args, token),
            other => return Err(format!("there is no command for {other}").into()),
        }
        flags(&mut words, args)?;
        self.run(&words, token)
    }
}

impl CommandLine {
    /// Reads a list page by page: the command shows as many entries as a page has.
    fn pages(
        &self,
        name: &str,
        command: &[&str],
        args: &mut Arguments,
        token: Option<&str>,
    ) -> StepResult {
        let pages = args.number("pages").map_or(PAGES_MAX, |pages| pages as usize);
        let mut words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        flags(&mut words, args)?;
        let (mut all, mut cursor) = (Vec::new(), Vec::new());
        for _ in 0..pages {
            let mut page = self.run(&[words.as_slice(), cursor.as_slice()].concat(), token)?;
            all.extend(page[name].take().as_array().cloned().unwrap_or_default());
            match page["next"].as_str() {
                Some(next) => cursor = vec![format!("--cursor={next}")],
                None => break,
            }
        }
        Ok(json!({ name: all }))
    }

    fn schedule(&self, namespace: &str, args: &mut Arguments, token: Option<&str>) -> StepResult {
        let task = args.take("task").unwrap_or_default();
        let mut conditions = Vec::new();
        if let Some(version) = args.text("if_match") {
            conditions.push(format!("--if-match={version}"));
        }
        if args.text("if_none_match").is_some() {
            conditions.push("--create-only".to_owned());
        }
        if let Some(key) = args.text("idempotency_key") {
            conditions.push(format!("--idempotency-key={key}"));
        }
        let key = args.text("key");
        let key: Vec<String> = key.into_iter().flat_map(|key| ["--".to_owned(), key]).collect();
        let command = ["schedule".to_owned(), namespace.to_owned()];
        let mut input = CommandInput { token, ..CommandInput::default() };
        let mut words = [&command[..], &conditions].concat();
        let scheduled = match task_flags(&task, &mut input) {
            Ok(flags) => {
                words.extend(flags);
                self.run_with(&[&words[..], &key].concat(), &input)
            }
            Err(failure) => Err(failure),
        };
        let Err(StepFailure::Other(why)) = scheduled else { return scheduled };
        if key.is_empty() {
            return Err(why.into());
        }
        let words = [&command[..], &conditions, &["--file=-".to_owned()], &key].concat();
        self.run_with(&words, &CommandInput { token, stdin: task.to_string() })
    }

    fn schedule_many(
        &self,
        namespace: &str,
        args: &mut Arguments,
        token: Option<&str>,
    ) -> StepResult {
        let tasks = args.take("tasks").unwrap_or_default();
        let lines = tasks.as_array().into_iter().flatten().map(|task| format!("{task}\n"));
        let words = ["schedule", namespace, "--file=-"].map(str::to_owned);
        let results = self.lines(&words, &CommandInput { token, stdin: lines.collect() })?;
        Ok(json!({ "results": results }))
    }

    fn many(
        &self,
        verb: &str,
        namespace: &str,
        args: &mut Arguments,
        token: Option<&str>,
    ) -> StepResult {
        let command = verb.trim_end_matches("_many");
        let mut words = vec![command.to_owned(), namespace.to_owned(), "--file=-".to_owned()];
        let names = match (args.texts("keys"), args.texts("ids")) {
            (Some(keys), _) => keys,
            (None, ids) => {
                words.push("--ids".to_owned());
                ids.unwrap_or_default()
            }
        };
        if let Some(task) = args.take("create") {
            words.push(format!("--create={task}"));
        }
        flags(&mut words, args)?;
        self.run_with(&words, &CommandInput { token, stdin: names.join("\n") })
    }

    fn put_rule(&self, namespace: &str, args: &mut Arguments, token: Option<&str>) -> StepResult {
        let words = ["rules", "put", namespace, &args.required("prefix")?, "--file=-"];
        let stdin = args.take("create").unwrap_or_default().to_string();
        self.run_with(&words.map(str::to_owned), &CommandInput { token, stdin })
    }

    fn verify(&self, args: &mut Arguments) -> StepResult {
        let mut words = vec!["verify".to_owned(), format!("--secret={}", args.required("secret")?)];
        for (name, value) in
            args.take("headers").unwrap_or_default().as_object().into_iter().flatten()
        {
            words.push(format!("--header={name}:{}", value.as_str().unwrap_or_default()));
        }
        // The flag takes milliseconds.
        words.push(format!("--now={}000", args.required("now")?));
        let stdin = args.required("body")?;
        self.run_with(&words, &CommandInput { stdin, ..CommandInput::default() })
    }

    /// `punctual listen` does the same with all deliveries, so it runs once for each that differs.
    fn work(&self, namespace: &str, args: &mut Arguments, token: Option<&str>) -> StepResult {
        let handler = args.take("handler").unwrap_or_default();
        let outcomes = handler.as_array().map(Vec::as_slice).unwrap_or_default();
        let (last, others) = outcomes.split_last().ok_or("a handler has an outcome")?;
        let count = args.number("count").ok_or("count is missing")? as usize;
        let queue = args.required("queue")?;
        let rest = count.checked_sub(others.len()).ok_or("there are more outcomes than count")?;
        let mut handled = Vec::new();
        for (outcome, count) in others.iter().map(|it| (it, 1)).chain([(last, rest)]) {
            let mut words = vec!["listen".to_owned(), namespace.to_owned(), queue.clone()];
            words.extend(["--max=1".to_owned(), format!("--count={count}")]);
            words.extend(listen_flags(outcome)?);
            handled.extend(self.lines(&words, &CommandInput { token, ..CommandInput::default() })?);
        }
        Ok(json!({ "handled": handled }))
    }
}

fn listen_flags(outcome: &Value) -> Result<Vec<String>, StepFailure> {
    let reason = outcome["reason"].as_str().unwrap_or("failed");
    let after = outcome["after"].as_str().map(|after| format!("--retry-in={after}"));
    Ok(match outcome["do"].as_str() {
        Some("ok") if outcome["result"].is_null() => Vec::new(),
        Some("ok") => vec![format!("--result={}", outcome["result"])],
        Some("error") => vec![format!("--fail={reason}")],
        Some("retry") => std::iter::once(format!("--fail={reason}")).chain(after).collect(),
        Some("refuse") => vec![format!("--refuse={reason}")],
        _ => return Err(format!("listen has no outcome {outcome}").into()),
    })
}

/// The command gives all its tokens the same result.
fn ack(words: &mut Vec<String>, args: &mut Arguments) -> Result<(), StepFailure> {
    words.extend(args.texts("tokens").unwrap_or_default());
    let acks = args.take("acks").unwrap_or_default();
    match acks.as_array().map(Vec::as_slice).unwrap_or_default() {
        [] => Ok(()),
        [ack] => {
            words.push(ack["token"].as_str().unwrap_or_default().to_owned());
            words.push(format!("--result={}", ack["result"]));
            Ok(())
        }
        _ => Err("the command gives all acks the same result".into()),
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

/// The flags that make up a task.
fn task_flags(task: &Value, input: &mut CommandInput) -> Result<Vec<String>, StepFailure> {
    let mut words = Vec::new();
    let mut add = |name: &str, value: &str| words.push(format!("--{name}={value}"));
    for (name, value) in task.as_object().ok_or("a task is an object")? {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match name.as_str() {
            "payload" if value.to_string().len() > ARGUMENT_BYTES_MAX => {
                input.stdin = value.to_string();
                add("payload", "-");
            }
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
    if task["target"]["mqtt"]["retain"] == json!(true) {
        words.push("--retain".to_owned());
    }
    Ok(words)
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
    if target["http"].is_null() {
        return other_target(add, target);
    }
    let http = target["http"].as_object().ok_or("a webhook is an object")?;
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

/// A gRPC method, or a place of a connection: `--kafka CONNECTION/TOPIC`.
fn other_target(add: &mut impl FnMut(&str, &str), target: &Value) -> Result<(), StepFailure> {
    let (kind, fields) = target.as_object().and_then(|it| it.iter().next()).ok_or("no target")?;
    let text = |name: &str| fields[name].as_str().unwrap_or_default();
    if kind == "grpc" {
        add("grpc", text("url"));
    } else {
        let places = ["statement", "topic", "exchange", "subject", "stream"];
        let place = places.into_iter().find(|name| fields[*name].is_string());
        let place = place.ok_or_else(|| format!("no target {kind}"))?;
        add(&kind.replace('_', "-"), &format!("{}/{}", text("connection"), text(place)));
    }
    for (name, value) in fields.as_object().into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let entries = || value.as_object().into_iter().flatten();
        match name.as_str() {
            "connection" | "statement" | "topic" | "exchange" | "subject" | "stream" | "url" => {}
            "key" => add("record-key", &text),
            "routing_key" => add("routing-key", &text),
            "headers" => entries().for_each(|(name, value)| {
                add("header", &format!("{name}:{}", value.as_str().unwrap_or_default()));
            }),
            "params" => {
                entries().for_each(|(name, value)| add("param", &format!("{name}={value}")));
            }
            "method" | "qos" | "maxlen" => add(name, &text),
            // A flag without a value: see `task_flags`.
            "retain" => {}
            other => return Err(format!("no flag takes {other}").into()),
        }
    }
    Ok(())
}
