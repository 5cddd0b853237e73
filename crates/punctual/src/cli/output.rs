//! Prints responses: tables for people, JSON for scripts.
//!
//! No control character of a response reaches the terminal. Colours are used only if the stream is
//! a terminal and the variable `NO_COLOR` is not set.

use std::io::{IsTerminal as _, Write as _};

use comfy_table::{Table, presets};
use punctual_core::Timestamp;
use serde_json::Value;

use super::broker::BrokerArgs;
use super::time::{now, with_distance};

/// How a piece of text is emphasized on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// The heads of columns.
    Head,
    /// The bars of a chart.
    Bar,
    /// The label of an error, on standard error.
    Error,
}

impl Style {
    /// Colours the text, if its stream is a terminal and the user wants colours.
    pub(crate) fn paint(self, text: &str) -> String {
        let is_terminal = match self {
            Self::Head | Self::Bar => std::io::stdout().is_terminal(),
            Self::Error => std::io::stderr().is_terminal(),
        };
        self.paint_if(is_terminal && wants_color(), text)
    }

    fn paint_if(self, color: bool, text: &str) -> String {
        let code = match self {
            Self::Head => "1",
            Self::Bar => "36",
            Self::Error => "1;31",
        };
        if color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Whether the environment allows colours (<https://no-color.org>).
fn wants_color() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Prints a response: as JSON with `--json`, else as `table` shows it.
pub(super) fn print(
    broker: &BrokerArgs,
    answer: &Value,
    table: impl FnOnce(&Value) -> String,
) -> anyhow::Result<()> {
    print_line(&if broker.json { json_text(answer) } else { table(answer) })
}

/// A value as JSON without control characters: those that JSON allows as they are get escaped too,
/// because a terminal may obey them.
pub(super) fn json_text(value: &Value) -> String {
    let text = value.to_string();
    if !text.contains(char::is_control) {
        return text;
    }
    let escaped = |c: char| match c.is_control() {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Prints a line. If the reader has closed the pipe, the program ends.
pub(crate) fn print_line(text: &str) -> anyhow::Result<()> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// Prints bytes. If the reader has closed the pipe, the program ends.
pub(crate) fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let printed = stdout.write_all(bytes).and_then(|()| stdout.flush());
    match printed {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        printed => Ok(printed?),
    }
}

/// A table with one row per object and the named members as columns.
pub(super) fn rows(objects: &Value, columns: &[&str]) -> String {
    let objects = objects.as_array().map(Vec::as_slice).unwrap_or_default();
    if objects.is_empty() {
        return "none".to_owned();
    }
    let now = now();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns);
    for object in objects {
        table.add_row(columns.iter().map(|column| cell(column, at(object, column), now)));
    }
    with_head(&trimmed(&table))
}

/// A list with one line per member of an object.
pub(super) fn fields(object: &Value) -> String {
    let now = now();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in object.as_object().into_iter().flatten() {
        table.add_row([name.clone(), cell(name, value, now)]);
    }
    trimmed(&table)
}

/// A task with one line per member, and its schedule on one of them.
pub(super) fn task(task: &Value) -> String {
    let mut shown = task.clone();
    let text = schedule(task);
    if let Some(fields) = shown.as_object_mut().filter(|_| !text.is_empty()) {
        for name in SCHEDULE_FIELDS {
            fields.remove(name);
        }
        fields.insert("schedule".to_owned(), text.into());
    }
    self::fields(&shown)
}

/// The members of a task that [`schedule`] combines.
const SCHEDULE_FIELDS: [&str; 6] = ["in", "at", "cron", "timezone", "every", "within"];

/// The schedule of a task as text: `cron 0 9 * * MON-FRI Europe/Berlin`, `every 5m`, `within 48h`.
pub(super) fn schedule(task: &Value) -> String {
    let given = |name| task[name].as_str().map(|value| format!("{name} {value}"));
    match (given("cron"), task["timezone"].as_str()) {
        (Some(cron), Some(zone)) => format!("{cron} {zone}"),
        (Some(cron), None) => cron,
        _ => ["every", "within", "in", "at"].into_iter().find_map(given).unwrap_or_default(),
    }
}

/// Emphasizes the first line.
pub(super) fn with_head(table: &str) -> String {
    match table.split_once('\n') {
        Some((head, rows)) => format!("{}\n{rows}", Style::Head.paint(head)),
        None => Style::Head.paint(table),
    }
}

/// Removes control characters.
pub(super) fn clean(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// `task.key` is the member `key` of the member `task`.
fn at<'a>(object: &'a Value, column: &str) -> &'a Value {
    column.split('.').fold(object, |value, name| &value[name])
}

/// A time (a member whose name ends in `_at`, or `from`) is shown with its distance from now.
fn cell(name: &str, value: &Value, now: Timestamp) -> String {
    let text = match value {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let is_time = name.ends_with("_at") || name == "from";
    match Timestamp::parse_rfc3339(&text) {
        Ok(at) if is_time => with_distance(at, now),
        _ => clean(&text),
    }
}

fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn control_characters_are_removed_and_times_have_a_distance() {
        let now = Timestamp::parse_rfc3339("2030-01-01T00:00:00Z").unwrap();
        assert_eq!(cell("key", &json!("a\u{1b}[2Jb"), now), "a [2Jb");
        let time = json!("2030-01-01T01:00:00.000Z");
        assert_eq!(cell("fire_at", &time, now), "2030-01-01T01:00:00Z (in 1h)");
        assert_eq!(cell("payload", &time, now), "2030-01-01T01:00:00.000Z");
        assert_eq!(cell("fire_at", &json!("\u{7}"), now), " ");
    }

    #[test]
    fn json_has_no_control_characters() {
        let value = json!({"text": "a\u{1b}[2J\u{7f}\u{9b}31mä\n"});
        let text = json_text(&value);
        assert!(!text.contains(char::is_control), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn text_is_coloured_only_if_wanted() {
        assert_eq!(Style::Error.paint_if(false, "error:"), "error:");
        assert_eq!(Style::Error.paint_if(true, "error:"), "\u{1b}[1;31merror:\u{1b}[0m");
    }
}
