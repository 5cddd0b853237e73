//! How answers look: tables for people, JSON for machines. Nothing of an answer reaches the terminal with control characters in it.

use std::io::Write as _;

use comfy_table::{Table, presets};
use serde_json::Value;

use super::broker::Broker;

/// Prints an answer as it came, or what `table` makes of it.
pub(crate) fn answer(
    broker: &Broker,
    answer: &Value,
    table: impl FnOnce(&Value) -> String,
) -> anyhow::Result<()> {
    line(&if broker.json { answer.to_string() } else { table(answer) })
}

/// Prints a line. Whoever reads may have gone: then there is nobody to print for.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let printed = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    match printed {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        printed => Ok(printed?),
    }
}

/// Objects as rows, the named fields as columns.
pub(crate) fn rows(objects: &Value, columns: &[&str]) -> String {
    let objects = objects.as_array().map(Vec::as_slice).unwrap_or_default();
    if objects.is_empty() {
        return "none".to_owned();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns);
    for object in objects {
        table.add_row(columns.iter().map(|column| cell(at(object, column))));
    }
    trimmed(&table)
}

/// One object, a field a line.
pub(crate) fn fields(object: &Value) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in object.as_object().into_iter().flatten() {
        table.add_row([name.clone(), cell(value)]);
    }
    trimmed(&table)
}

/// A task, a field a line, with its rule in one of them.
pub(crate) fn task(task: &Value) -> String {
    let mut shown = task.clone();
    let rule = schedule(task);
    if let Some(fields) = shown.as_object_mut().filter(|_| !rule.is_empty()) {
        for name in RULE {
            fields.remove(name);
        }
        fields.insert("schedule".to_owned(), rule.into());
    }
    self::fields(&shown)
}

/// The fields that [`schedule`] puts into words.
const RULE: [&str; 6] = ["in", "at", "cron", "timezone", "every", "within"];

/// The rule of a task in words: `cron 0 9 * * MON-FRI Europe/Berlin`, `every 5m`, `within 48h`.
pub(crate) fn schedule(task: &Value) -> String {
    let said = |name| task[name].as_str().map(|value| format!("{name} {value}"));
    match (said("cron"), task["timezone"].as_str()) {
        (Some(cron), Some(zone)) => format!("{cron} {zone}"),
        (Some(cron), None) => cron,
        _ => ["every", "within", "in", "at"].into_iter().find_map(said).unwrap_or_default(),
    }
}

/// `task.key` is the key within the task.
fn at<'a>(object: &'a Value, column: &str) -> &'a Value {
    column.split('.').fold(object, |value, name| &value[name])
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.replace(char::is_control, " ")
}

fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}
