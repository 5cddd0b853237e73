//! The figures of a part, and the rows of the table that is made of them.
//!
//! A part runs in its own process and prints `name value` lines.

use std::collections::BTreeMap;
use std::fmt;

/// The measurements of one part, by name.
#[derive(Debug, Clone, Default)]
pub struct StoreFigures(BTreeMap<String, f64>);

impl StoreFigures {
    pub fn set(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), value);
    }

    pub fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(f64::NAN)
    }

    pub fn take_line(&mut self, line: &str) -> Option<()> {
        let (name, value) = line.split_once(' ')?;
        self.0.insert(name.to_owned(), value.parse().ok()?);
        Some(())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl fmt::Display for StoreFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "{name} {value}"))
    }
}

/// A row of the table: what was measured, the result, and the target.
pub struct TableRow {
    pub what: String,
    pub reached: String,
    pub wanted: String,
    /// Whether the target was reached; `None` without a target.
    pub yes: Option<bool>,
}

impl TableRow {
    pub fn new(what: impl Into<String>, reached: impl Into<String>) -> TableRow {
        TableRow { what: what.into(), reached: reached.into(), wanted: "–".to_owned(), yes: None }
    }

    pub fn wanted(mut self, wanted: impl Into<String>, yes: bool) -> TableRow {
        self.wanted = wanted.into();
        self.yes = Some(yes);
        self
    }
}

impl fmt::Display for TableRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yes = match self.yes {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        };
        write!(f, "| {} | {} | {} | {yes} |", self.what, self.reached, self.wanted)
    }
}

/// Formats a number with thousands separators.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
