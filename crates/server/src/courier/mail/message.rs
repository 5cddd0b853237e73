//! A mail in the form of RFC 5322.

use std::time::{Duration, SystemTime};

use lettre::Address;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message, MessageBuilder};
use punctual_core::{FireId, MailTarget, Timestamp};
use punctual_engine::Delivery;

/// Keeps vacation messages and the like from answering (RFC 3834).
const AUTO_SUBMITTED: (&str, &str) = ("Auto-Submitted", "auto-generated");

/// A mail that is ready to be sent.
#[derive(Debug)]
pub(super) struct MailMessage {
    sender: Address,
    recipients: Vec<Address>,
    bytes: Vec<u8>,
}

impl MailMessage {
    /// Makes the mail of a delivery. The error says what is wrong with its target.
    pub(super) fn new(
        from: &Mailbox,
        target: &MailTarget,
        delivery: &Delivery,
    ) -> Result<Self, String> {
        let text = String::from_utf8_lossy(delivery.definition.payload.bytes()).into_owned();
        Self::of(from, target, text, delivery.fire_id, delivery.fired_at)
    }

    fn of(
        from: &Mailbox,
        target: &MailTarget,
        text: String,
        fire_id: FireId,
        sent_at: Timestamp,
    ) -> Result<Self, String> {
        let mut recipients: Vec<Address> = Vec::new();
        let mut message = builder(from, target.subject(), fire_id, sent_at);
        for recipient in target.recipients() {
            let address: Address =
                recipient.parse().map_err(|error| format!("{recipient:?}: {error}"))?;
            message = message.to(Mailbox::new(None, address.clone()));
            recipients.push(address);
        }
        let message = message.body(text).map_err(|error| error.to_string())?;
        Ok(Self { sender: from.email.clone(), recipients, bytes: message.formatted() })
    }

    pub(super) const fn sender(&self) -> &Address {
        &self.sender
    }

    pub(super) fn recipients(&self) -> &[Address] {
        &self.recipients
    }

    /// The message, in ASCII.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The id of the message is that of the fire: a mail that is sent twice has it twice.
fn builder(from: &Mailbox, subject: &str, fire_id: FireId, sent_at: Timestamp) -> MessageBuilder {
    let (name, value) = AUTO_SUBMITTED;
    let header = HeaderValue::new(HeaderName::new_from_ascii_str(name), value.to_owned());
    Message::builder()
        .from(from.clone())
        .subject(subject)
        .date(SystemTime::UNIX_EPOCH + Duration::from_millis(sent_at.as_millis()))
        .message_id(Some(format!("<{fire_id}@{}>", from.email.domain())))
        .raw_header(header)
        .header(ContentType::TEXT_PLAIN)
}

#[cfg(test)]
mod tests {
    use punctual_core::TaskId;

    use super::*;

    const SENT_AT: Timestamp = Timestamp::from_millis(1_795_000_000_000);

    fn mail(subject: &str, text: &str) -> MailMessage {
        let recipients = vec!["ops@example.org".to_owned(), "shop@example.org".to_owned()];
        let target = MailTarget::new(recipients, subject).unwrap();
        let from: Mailbox = "Punctual <alarms@example.org>".parse().unwrap();
        let fire_id = FireId { task: TaskId::floor(SENT_AT), nominal_at: SENT_AT };
        MailMessage::of(&from, &target, text.to_owned(), fire_id, SENT_AT).unwrap()
    }

    #[test]
    fn a_mail_has_the_headers_that_servers_and_readers_need() {
        let fire_id = FireId { task: TaskId::floor(SENT_AT), nominal_at: SENT_AT };
        let mail = mail("Alarm \"a\" is raised", "One.\n\nat: now\n");
        let text = String::from_utf8(mail.bytes().to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        for line in [
            "From: Punctual <alarms@example.org>",
            "To: ops@example.org, shop@example.org",
            "Subject: Alarm \"a\" is raised",
            "Date: Wed, 18 Nov 2026 11:06:40 +0000",
            &format!("Message-ID: <{fire_id}@example.org>"),
            "Auto-Submitted: auto-generated",
            "Content-Type: text/plain; charset=utf-8",
        ] {
            assert!(head.lines().any(|it| it == line), "{line} in {head}");
        }
        assert_eq!(body, "One.\r\n\r\nat: now\r\n");
        assert_eq!(mail.recipients().len(), 2);
        assert_eq!(mail.sender().to_string(), "alarms@example.org");
    }

    #[test]
    fn a_mail_is_ascii_and_a_subject_adds_no_header() {
        let mail = mail("überfällig\r\nBcc: x@example.org", "42 % später");
        assert!(mail.bytes().is_ascii());
        let text = String::from_utf8(mail.bytes().to_vec()).unwrap();
        assert!(!text.lines().any(|line| line.starts_with("Bcc")), "{text}");
    }
}
