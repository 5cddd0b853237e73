//! Names that callers choose: namespaces, keys, queues, labels.
//!
//! Each is checked when it is made, so that it is safe in paths, metric labels, headers and store
//! keys; the error says which characters and lengths are allowed. Cloning a name copies a
//! reference.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::Invalid;
use crate::limits::{
    ALARM_NAME_BYTES_MAX, CONNECTION_BYTES_MAX, KEY_BYTES_MAX, LABEL_NAME_BYTES_MAX,
    LABEL_VALUE_BYTES_MAX, LABELS_MAX, NAMESPACE_BYTES_MAX, QUEUE_BYTES_MAX, STATEMENT_BYTES_MAX,
};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $field:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Makes a name of a valid text.
            pub fn new(text: &str) -> Result<Self, Invalid> {
                let check: fn(&str) -> Result<(), String> = $check;
                check(text).map_err(|problem| Invalid::new($field, problem))?;
                Ok(Self(text.into()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A tenant. Each namespace has its own keys, quotas and rights.
    Namespace,
    "namespace",
    |text| check_word(text, NAMESPACE_BYTES_MAX)
);
name!(
    /// The caller's own name for a task, unique in its namespace.
    TaskKey,
    "key",
    |text| check_text(text, 1, KEY_BYTES_MAX)
);
name!(
    /// The name of a queue to which workers subscribe.
    Queue,
    "target.queue",
    |text| check_word(text, QUEUE_BYTES_MAX)
);

name!(
    /// The name of a connection of the configuration.
    ConnectionName,
    "connection",
    |text| check_word(text, CONNECTION_BYTES_MAX)
);
name!(
    /// The name of a statement of the configuration.
    StatementName,
    "statement",
    |text| check_word(text, STATEMENT_BYTES_MAX)
);

name!(
    /// The name of an alarm, unique in its namespace.
    AlarmName,
    "name",
    |text| check_word(text, ALARM_NAME_BYTES_MAX)
);

/// Ends the namespaces of receipts. Not allowed in the namespace of a caller, like the next two.
const RECEIPTS_MARK: char = '~';
/// Ends the namespaces of notices.
const NOTICES_MARK: char = '!';
/// The namespace of alarms.
const ALARMS: &str = "!alarms";

/// Internal namespaces. No caller can name them.
impl Namespace {
    /// The namespace of the receipts of this one. Receipts are internal tasks that remember what
    /// was created with which idempotency key.
    #[must_use]
    pub fn of_receipts(&self) -> Self {
        Self(format!("{}{RECEIPTS_MARK}", self.0).into())
    }

    /// Whether its tasks are receipts.
    #[must_use]
    pub fn is_of_receipts(&self) -> bool {
        self.0.ends_with(RECEIPTS_MARK)
    }

    /// The namespace of the notices of this one: tasks that report that an alarm was raised or is
    /// over. They share nothing with the tasks that the alarms watch.
    #[must_use]
    pub fn of_notices(&self) -> Self {
        Self(format!("{}{NOTICES_MARK}", self.0).into())
    }

    /// Whether its tasks are receipts of notices. They are in the first partition of every store.
    #[must_use]
    pub fn is_of_notice_receipts(&self) -> bool {
        self.0.strip_suffix(RECEIPTS_MARK).is_some_and(|owner| owner.ends_with(NOTICES_MARK))
    }

    /// The namespace of the alarms of all namespaces. Each is a paused task.
    #[must_use]
    pub fn of_alarms() -> Self {
        Self(ALARMS.into())
    }

    /// Whether its tasks are alarms.
    #[must_use]
    pub fn is_of_alarms(&self) -> bool {
        *self.0 == *ALARMS
    }

    /// Whether all its tasks are in the first partition: alarms, notices, and the receipts of
    /// notices.
    #[must_use]
    pub fn is_in_first_partition(&self) -> bool {
        self.0.contains(NOTICES_MARK)
    }

    /// Whether its tasks are made by Punctual and not by a caller.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.0.starts_with(NOTICES_MARK) || self.0.ends_with([RECEIPTS_MARK, NOTICES_MARK])
    }

    /// The namespace as a receiver knows it: that of the caller, also for its notices.
    #[must_use]
    pub fn of_caller(&self) -> Self {
        match self.0.strip_suffix(NOTICES_MARK) {
            Some(owner) => Self(owner.into()),
            None => self.clone(),
        }
    }

    /// Makes a namespace of stored text, which may be an internal one.
    pub fn from_stored(text: &str) -> Result<Self, Invalid> {
        if let Some(owner) = text.strip_suffix(RECEIPTS_MARK) {
            return Ok(Self::from_stored(owner)?.of_receipts());
        }
        match text.strip_suffix(NOTICES_MARK) {
            Some(owner) => Ok(Self::new(owner)?.of_notices()),
            None if text == ALARMS => Ok(Self::of_alarms()),
            None => Self::new(text),
        }
    }
}

/// Names and values to find tasks by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Makes labels of pairs within the limits.
    pub fn new(pairs: BTreeMap<String, String>) -> Result<Self, Invalid> {
        if pairs.len() > LABELS_MAX {
            let problem = format!("must have at most {LABELS_MAX} labels, has {}", pairs.len());
            return Err(Invalid::new("labels", problem));
        }
        for (name, value) in &pairs {
            check_word(name, LABEL_NAME_BYTES_MAX)
                .map_err(|problem| Invalid::new("labels", format!("name {name:?} {problem}")))?;
            check_text(value, 0, LABEL_VALUE_BYTES_MAX)
                .map_err(|problem| Invalid::new(format!("labels.{name}"), problem))?;
        }
        Ok(Self(pairs))
    }

    /// All pairs, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a label.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether there are no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Allows ASCII letters, digits, `.`, `_` and `-`, with a letter or a digit first. Paths, metrics
/// and store keys need no escaping for them.
fn check_word(text: &str, bytes_max: usize) -> Result<(), String> {
    let fits = (1..=bytes_max).contains(&text.len());
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if fits && starts && plain {
        return Ok(());
    }
    Err(format!(
        "must be 1 to {bytes_max} letters, digits, '.', '_' or '-', \
         beginning with a letter or digit"
    ))
}

/// Allows all text without control characters, which would break headers, logs and terminals.
fn check_text(text: &str, bytes_min: usize, bytes_max: usize) -> Result<(), String> {
    if !(bytes_min..=bytes_max).contains(&text.len()) {
        return Err(format!("must have {bytes_min} to {bytes_max} bytes, has {}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_letters_digits_and_few_other_characters() {
        for (text, accepted) in [
            ("shop", true),
            ("shop-1.eu_west", true),
            ("7", true),
            ("", false),
            ("-shop", false),
            ("shop/eu", false),
            ("shöp", false),
            ("a b", false),
            (&"x".repeat(64), true),
            (&"x".repeat(65), false),
        ] {
            assert_eq!(Namespace::new(text).is_ok(), accepted, "{text:?}");
        }
    }

    #[test]
    fn no_caller_can_name_an_internal_namespace() {
        let shop = Namespace::new("shop").unwrap();
        let notices = shop.of_notices();
        for internal in [
            shop.of_receipts(),
            notices.clone(),
            notices.of_receipts(),
            Namespace::of_alarms(),
            Namespace::of_alarms().of_receipts(),
        ] {
            assert!(internal.is_internal(), "{internal}");
            assert!(Namespace::new(internal.as_str()).is_err());
            assert_eq!(Namespace::from_stored(internal.as_str()), Ok(internal));
        }
        assert!(shop.of_receipts().is_of_receipts() && !shop.is_of_receipts());
        assert!(Namespace::of_alarms().is_of_alarms() && !notices.is_of_alarms());
        assert!(notices.of_receipts().is_of_notice_receipts() && !notices.is_of_notice_receipts());
        assert!(!shop.of_receipts().is_of_notice_receipts());
        assert!(!shop.is_internal());
        assert_eq!((notices.of_caller(), shop.of_caller()), (shop.clone(), shop.clone()));
        assert_eq!(Namespace::from_stored("shop"), Ok(shop));
        for text in ["a b~", "a b!", "!", "~", "!other", "shop!!", "shop~!"] {
            assert!(Namespace::from_stored(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_is_any_text_without_control_characters() {
        for (text, accepted) in [
            ("order-42", true),
            ("geräte/halle 3/Ω", true),
            ("01HF7YAT00TESTKEY0000000AB", true),
            ("", false),
            ("a\nb", false),
            ("a\u{7f}b", false),
            (&"x".repeat(256), true),
            (&"x".repeat(257), false),
        ] {
            assert_eq!(TaskKey::new(text).is_ok(), accepted, "{text:?}");
        }
    }

    #[test]
    fn an_error_names_the_field_and_its_limit() {
        let error = TaskKey::new(&"x".repeat(300)).unwrap_err();
        assert_eq!(error.to_string(), "key: must have 1 to 256 bytes, has 300");
    }

    #[test]
    fn the_number_and_the_size_of_labels_are_limited() {
        let many = |n: usize| (0..n).map(|i| (format!("l{i}"), String::new())).collect();
        assert!(Labels::new(many(16)).is_ok());
        assert_eq!(Labels::new(many(17)).unwrap_err().field, "labels");
        let long = BTreeMap::from([("a".to_owned(), "x".repeat(257))]);
        assert_eq!(Labels::new(long).unwrap_err().field, "labels.a");
        let odd = BTreeMap::from([("a b".to_owned(), String::new())]);
        assert_eq!(Labels::new(odd).unwrap_err().field, "labels");
    }
}
