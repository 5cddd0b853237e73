//! The rights that a token may have in a namespace.
//!
//! A token is configured with some of them (`shop:read+operate`), or with all (`shop`).
//! [`super::RIGHTS`] says which routes each of them opens.

use std::fmt;

/// A right in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// See tasks, fires, dead letters, alarms, queues, counts.
    Read,
    /// Create and replace tasks, cancel and touch them.
    Produce,
    /// Receive and settle the deliveries of queues.
    Consume,
    /// Cancel, touch, pause, resume and fire tasks, redrive and delete dead letters, change alarms.
    Operate,
}

impl Right {
    /// All rights, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Read, Self::Produce, Self::Consume, Self::Operate];

    /// The name in the configuration and in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Produce => "produce",
            Self::Consume => "consume",
            Self::Operate => "operate",
        }
    }
}

/// A set of rights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    pub(crate) const NONE: Self = Self(0);
    /// All four rights.
    pub const ALL: Self = Self::of(&Right::ALL);

    /// These rights.
    #[must_use]
    pub const fn of(rights: &[Right]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < rights.len() {
            bits |= 1 << rights[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    /// Parses names of rights that are joined by `+`. The error says which one is unknown.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rights = Self::NONE;
        for name in text.split('+') {
            let right = Right::ALL.into_iter().find(|right| right.name() == name);
            let right = right.ok_or_else(|| {
                let all = Right::ALL.map(Right::name).join(", ");
                format!("unknown right {name:?}; the rights are {all}, joined by '+'")
            })?;
            rights = rights.with(Self::of(&[right]));
        }
        Ok(rights)
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether one of these rights is among the others.
    pub(crate) const fn has_one_of(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// The rights by name.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let rights = Right::ALL.into_iter();
        rights.filter(move |right| self.has_one_of(Self::of(&[*right]))).map(Right::name)
    }
}

/// As in the configuration.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join("+"))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rights({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_parsed_by_name_and_an_unknown_one_is_named() {
        for (text, want) in [
            ("read", Ok("read")),
            ("operate+read", Ok("read+operate")),
            ("read+read", Ok("read")),
            ("consume+operate+produce+read", Ok("read+produce+consume+operate")),
            ("write", Err("\"write\"")),
            ("read+", Err("\"\"")),
            ("", Err("\"\"")),
            ("Read", Err("\"Read\"")),
        ] {
            match (Rights::parse(text), want) {
                (Ok(rights), Ok(want)) => assert_eq!(rights.to_string(), want),
                (Err(error), Err(want)) => {
                    assert!(error.starts_with(&format!("unknown right {want}")), "{error}");
                    assert!(error.contains("read, produce, consume, operate"), "{error}");
                }
                (got, want) => panic!("{text}: {got:?}, not {want:?}"),
            }
        }
        assert_eq!(Rights::ALL.to_string(), "read+produce+consume+operate");
    }
}
