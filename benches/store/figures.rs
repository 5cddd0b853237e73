//! Figures: what a part measured, and the table that is made of it.
//!
//! In: `name value` lines from the process of a part. Out: rows: what, reached, wanted, yes or no.

use std::collections::BTreeMap;
use std::fmt;

/// What one part measured, by name.
#[derive(Debug, Clone, Default)]
pub struct Figures(BTreeMap<String, f64>);

impl Figures {
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

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "{name} {value}"))
    }
}

/// One row of the table.
pub struct Row {
    pub what: String,
    pub reached: String,
    pub wanted: String,
    /// `None` where nothing was wanted, or where it could not be measured.
    pub yes: Option<bool>,
}

impl Row {
    pub fn new(what: impl Into<String>, reached: impl Into<String>) -> Row {
        Row { what: what.into(), reached: reached.into(), wanted: "–".to_owned(), yes: None }
    }

    pub fn wanted(mut self, wanted: impl Into<String>, yes: bool) -> Row {
        self.wanted = wanted.into();
        self.yes = Some(yes);
        self
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yes = match self.yes {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        };
        write!(f, "| {} | {} | {} | {yes} |", self.what, self.reached, self.wanted)
    }
}

/// With commas, for people.
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
