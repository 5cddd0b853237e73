//! Mail as a target: the recipients and the subject of a message whose text is the payload.
//!
//! Only Punctual makes such targets, for the notices of alarms; a caller cannot. The mail server is
//! part of the broker's configuration (`server/courier/mail`).

use crate::Invalid;
use crate::limits::{MAIL_ADDRESS_BYTES_MAX, MAIL_RECIPIENTS_MAX, MAIL_SUBJECT_BYTES_MAX};

/// The recipients and the subject of a mail.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MailTarget {
    recipients: Vec<String>,
    subject: String,
}

impl MailTarget {
    /// Makes a target of valid addresses. A subject that is too long is cut, and control characters
    /// in it become spaces.
    pub fn new(recipients: Vec<String>, subject: &str) -> Result<Self, Invalid> {
        check_recipients(&recipients).map_err(|problem| Invalid::new("to", problem))?;
        Ok(Self { recipients, subject: clean(subject) })
    }

    /// The addresses.
    #[must_use]
    pub fn recipients(&self) -> &[String] {
        &self.recipients
    }

    /// The subject, in one line.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }
}

fn clean(subject: &str) -> String {
    let line: String = subject.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line[..line.floor_char_boundary(MAIL_SUBJECT_BYTES_MAX)].to_owned()
}

fn check_recipients(recipients: &[String]) -> Result<(), String> {
    let count = recipients.len();
    if !(1..=MAIL_RECIPIENTS_MAX).contains(&count) {
        return Err(format!("must have 1 to {MAIL_RECIPIENTS_MAX} addresses, has {count}"));
    }
    match recipients.iter().find(|address| !is_address(address)) {
        Some(address) => Err(format!("{address:?} is not a mail address like ops@example.org")),
        None => Ok(()),
    }
}

/// The plain form of RFC 5321, without quotes and comments: the mail server decides about the rest.
fn is_address(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let is_part = |part: &str, allowed: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || allowed.contains(c);
        !part.is_empty()
            && part.chars().all(plain)
            && !part.starts_with('.')
            && !part.ends_with('.')
    };
    text.len() <= MAIL_ADDRESS_BYTES_MAX
        && is_part(local, ".!#$%&'*+-/=?^_`{|}~")
        && is_part(domain, ".-")
        && !domain.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_can_carry_no_command_and_no_header() {
        for (address, accepted) in [
            ("ops@example.org", true),
            ("on-call+shop@mail.example.org", true),
            ("root@localhost", true),
            ("", false),
            ("ops", false),
            ("@example.org", false),
            ("ops@", false),
            ("ops@-x", false),
            ("ops@example.org>\r\nRCPT TO:<x@y", false),
            ("a b@example.org", false),
            ("\"a\"@example.org", false),
            ("ops@exämple.org", false),
            (&format!("{}@example.org", "x".repeat(250)), false),
        ] {
            let target = MailTarget::new(vec![address.to_owned()], "s");
            assert_eq!(target.is_ok(), accepted, "{address:?}");
        }
        let none = MailTarget::new(vec![], "s").unwrap_err();
        assert_eq!(none.to_string(), "to: must have 1 to 16 addresses, has 0");
    }

    #[test]
    fn a_subject_is_one_line_of_limited_length() {
        let mail = |subject| MailTarget::new(vec!["ops@example.org".to_owned()], subject).unwrap();
        assert_eq!(mail("a\r\nbcc: x").subject(), "a  bcc: x");
        assert_eq!(mail(&"ü".repeat(400)).subject(), "ü".repeat(256));
    }
}
