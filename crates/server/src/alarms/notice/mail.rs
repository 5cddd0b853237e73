//! The mail of a notice: the sentence, then the facts, one per line.

use std::fmt::Write as _;

use punctual_core::{MailTarget, Payload, Target};

use super::facts::{NoticeFacts, state_name};
use super::sentence;

/// The content type of the text.
const TEXT: &str = "text/plain; charset=utf-8";

pub(super) fn message(facts: &NoticeFacts<'_>, recipients: &[String]) -> (Target, Payload) {
    let subject = format!("[Punctual] {}", sentence::headline(facts));
    let mail = MailTarget::new(recipients.to_vec(), &subject)
        .expect("the addresses were checked with the rule");
    let payload = Payload::Binary { bytes: text(facts).into(), content_type: TEXT.into() };
    (Target::Mail(Box::new(mail)), payload)
}

fn text(facts: &NoticeFacts<'_>) -> String {
    let (alarm, status) = (facts.alarm, &facts.alarm.status);
    let measured = facts.value.and_then(|value| sentence::measured(&alarm.rule.when, value));
    let mut text = sentence::sentence(facts);
    text.push_str("\n\n");
    for (name, fact) in [
        ("namespace", Some(alarm.namespace.to_string())),
        ("alarm", Some(alarm.name.to_string())),
        ("state", Some(state_name(status.state).to_owned())),
        ("since", Some(status.since.to_string())),
        ("at", Some(facts.now.to_string())),
        ("measured", measured),
        ("limit", Some(sentence::limit(&alarm.rule.when))),
        ("notice", Some(status.notices.to_string())),
    ] {
        if let Some(fact) = fact {
            writeln!(text, "{name}: {fact}").expect("writing to a string does not fail");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use punctual_core::{AlarmReceiver, AlarmValue};

    use super::super::facts::NoticeKind;
    use super::super::facts::fixtures::{NOW, alarm, failures};
    use super::*;

    #[test]
    fn a_mail_has_the_sentence_and_the_facts() {
        let recipients = vec!["ops@example.org".to_owned(), "shop@example.org".to_owned()];
        let alarm = alarm(failures(), AlarmReceiver::Mail(recipients.clone()));
        let value = Some(AlarmValue::Count(120));
        let facts = NoticeFacts { alarm: &alarm, kind: NoticeKind::Raised, value, now: NOW };
        let (target, payload) = message(&facts, &recipients);
        let Target::Mail(mail) = target else { panic!("not a mail: {target:?}") };
        assert_eq!(mail.recipients(), recipients);
        let subject = "[Punctual] Alarm \"errors\" of namespace \"shop\" is raised";
        assert_eq!(mail.subject(), subject);
        assert_eq!(payload.content_type(), Some("text/plain; charset=utf-8"));
        let want = "Alarm \"errors\" of namespace \"shop\" is raised: \
                    120 attempts failed within 1m (limit 100).\n\n\
                    namespace: shop\nalarm: errors\nstate: raised\n\
                    since: 2026-11-18T10:54:40.000Z\nat: 2026-11-18T11:06:40.000Z\n\
                    measured: 120 attempts failed within 1m\nlimit: 100\nnotice: 3\n";
        assert_eq!(payload.bytes(), want);
    }
}
