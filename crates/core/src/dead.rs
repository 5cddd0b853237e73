//! Dead letters: fires that ended without success, kept with their task and their attempts.
//!
//! `settle` decides that a fire is dead. A dead letter stays in the store until it is redriven,
//! deleted, or past its retention. Letters with the same [`LetterGroup`] have one cause; stores
//! count them together.

use crate::attempt::Outcome;
use crate::{FireId, Target, Task, Timestamp};

/// Characters of a worker's reason in the name of a group: enough to tell reasons apart, few enough
/// that a reason with a number at its end does not make a group of its own.
const REASON_CHARS_MAX: usize = 64;
/// Bytes of the target in the name of a group: a host name has at most 253.
const TARGET_BYTES_MAX: usize = 300;

/// Why a fire is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// No attempt is left.
    Exhausted,
    /// The receiver refused it.
    Refused,
    /// It expired before an attempt succeeded.
    Expired,
    /// At most once: it was sent, and it is not known whether it arrived.
    Unknown,
}

/// A fire that ended without success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The task with this fire as its current one, and with its attempts.
    pub task: Task,
    /// When the fire was given up.
    pub died_at: Timestamp,
    /// Why it was given up.
    pub reason: DeadReason,
}

impl Target {
    /// The name of all targets that share a receiver: scheme, host and port of a webhook or a gRPC
    /// method, a queue, or a connection and its place.
    #[must_use]
    pub fn group(&self) -> String {
        match self {
            Self::Http(http) => origin_group(http.origin()).to_owned(),
            Self::Queue(queue) => format!("queue {}", queue.as_str()),
            Self::Mail(_) => "mail".to_owned(),
            Self::Sink(sink) => match sink.lane() {
                "" => sink.connection.to_string(),
                lane => format!("{} {lane}", sink.connection),
            },
            Self::Grpc(grpc) => origin_group(grpc.origin()).to_owned(),
        }
    }
}

/// Scheme, host and port of a webhook or a gRPC method, cut to a length that can be shown.
#[must_use]
pub fn origin_group(origin: &str) -> &str {
    cut(origin, TARGET_BYTES_MAX)
}

impl DeadLetter {
    /// The fire that is dead.
    #[must_use]
    pub fn fire_id(&self) -> FireId {
        self.task.fire().id
    }
}

/// What dead letters of one cause have in common: what the last attempt said, and where it went.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterGroup {
    /// The reason in few words, such as `status 503` or `timeout`.
    pub reason: String,
    /// Scheme, host and port of a webhook, `queue NAME`, or `mail`.
    pub target: String,
}

impl LetterGroup {
    /// The group that counts letters for which a store has no group left.
    #[must_use]
    pub fn other() -> Self {
        Self { reason: "other".to_owned(), target: String::new() }
    }
}

impl DeadLetter {
    /// The group that the letter belongs to.
    #[must_use]
    pub fn group(&self) -> LetterGroup {
        let target = self.task.definition.target.group();
        LetterGroup { reason: self.reason_in_words(), target }
    }

    fn reason_in_words(&self) -> String {
        let last = self.task.attempts.last().map(|attempt| &attempt.outcome);
        // What a reason begins with that is the status of an answer.
        let status_of = match self.task.definition.target {
            Target::Http(_) => Some("HTTP "),
            Target::Grpc(_) => Some("gRPC "),
            Target::Queue(_) | Target::Mail(_) | Target::Sink(_) => None,
        };
        match (self.reason, last) {
            (DeadReason::Unknown, _) => "unknown outcome".to_owned(),
            (DeadReason::Expired, _) => "expired".to_owned(),
            (_, Some(Outcome::Expired)) => "timeout".to_owned(),
            (
                reason,
                Some(Outcome::Failed { reason: said, .. } | Outcome::Refused { reason: said }),
            ) => {
                let said = said.as_str();
                if let Some(status) = status_of.and_then(|prefix| said.strip_prefix(prefix)) {
                    format!("status {}", cut(status, REASON_CHARS_MAX))
                } else if reason == DeadReason::Refused {
                    "refused".to_owned()
                } else if status_of.is_some() && said.starts_with("no answer: ") {
                    "connection failed".to_owned()
                } else {
                    let end = said.char_indices().nth(REASON_CHARS_MAX).map(|(at, _)| at);
                    format!("failed: {}", &said[..end.unwrap_or(said.len())])
                }
            }
            (DeadReason::Refused, _) => "refused".to_owned(),
            (DeadReason::Exhausted, _) => "no attempt left".to_owned(),
        }
    }
}

fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::attempt::Reason;
    use crate::{
        ConnectionName, Due, HttpTarget, MessageAddress, MessageOptions, MessageSystem, Method,
        Namespace, NewTask, Queue, Schedule, SinkAddress, SinkTarget, TaskId, Version,
    };

    fn letter(target: Target, reason: DeadReason, outcome: Option<Outcome>) -> DeadLetter {
        let schedule = Schedule::Once(Due::In(Duration::ZERO));
        let definition = NewTask::new(Namespace::new("shop").unwrap(), schedule, target);
        let id = TaskId::floor(Timestamp::EPOCH);
        let mut task = Task::new(id, definition.into(), Timestamp::EPOCH, Version::FIRST);
        if let Some(outcome) = outcome {
            task.add_attempt(Timestamp::EPOCH, Timestamp::EPOCH, outcome);
        }
        DeadLetter { task, died_at: Timestamp::EPOCH, reason }
    }

    #[test]
    fn letters_of_one_cause_have_the_same_group() {
        use DeadReason::{Exhausted, Expired, Refused, Unknown};
        let http = |url: &str| Target::Http(HttpTarget::new(url, Method::Post, vec![]).unwrap());
        let hook = || http("https://api.example:8443/orders/17?a=b");
        let queue = || Target::Queue(Queue::new("reports").unwrap());
        let grpc =
            || Target::Grpc(Box::new(crate::GrpcTarget::new("http://a:1/", "/a.B/C").unwrap()));
        let sink = |exchange: &str, key: &str| {
            let options = MessageOptions { key: Some(key.to_owned()), ..MessageOptions::default() };
            let address = MessageAddress::new(MessageSystem::Amqp, exchange, options).unwrap();
            let connection = ConnectionName::new("events").unwrap();
            let address = SinkAddress::Message(address);
            Target::Sink(Box::new(SinkTarget { connection, address }))
        };
        let failed = |text: &str| Outcome::Failed { reason: Reason::new(text), retry_in: None };
        let refused = |text: &str| Outcome::Refused { reason: Reason::new(text) };
        let origin = "https://api.example:8443";
        let long = "ü".repeat(70);
        for (target, reason, outcome, want) in [
            (hook(), Exhausted, Some(failed("HTTP 503")), ("status 503", origin)),
            (hook(), Refused, Some(refused("HTTP 410")), ("status 410", origin)),
            (hook(), Refused, Some(refused("address is private")), ("refused", origin)),
            (hook(), Exhausted, Some(Outcome::Expired), ("timeout", origin)),
            (
                hook(),
                Exhausted,
                Some(failed("no answer: connection refused")),
                ("connection failed", origin),
            ),
            (
                hook(),
                Exhausted,
                Some(failed("answer is not JSON")),
                ("failed: answer is not JSON", origin),
            ),
            (queue(), Exhausted, Some(failed("HTTP 503")), ("failed: HTTP 503", "queue reports")),
            (
                queue(),
                Exhausted,
                Some(failed(&long)),
                (&format!("failed: {}", "ü".repeat(64)), "queue reports"),
            ),
            (queue(), Refused, Some(refused("no such order")), ("refused", "queue reports")),
            (queue(), Unknown, Some(failed("x")), ("unknown outcome", "queue reports")),
            (queue(), Expired, None, ("expired", "queue reports")),
            (queue(), Exhausted, None, ("no attempt left", "queue reports")),
            (http("http://a.example"), Expired, None, ("expired", "http://a.example")),
            (grpc(), Exhausted, Some(failed("gRPC NOT_FOUND")), ("status NOT_FOUND", "http://a:1")),
            (
                grpc(),
                Exhausted,
                Some(failed("no answer: broken pipe")),
                ("connection failed", "http://a:1"),
            ),
            (sink("orders", ""), Exhausted, None, ("no attempt left", "events orders")),
            (sink("", "mails"), Exhausted, None, ("no attempt left", "events")),
        ] {
            let group = letter(target, reason, outcome).group();
            assert_eq!((group.reason.as_str(), group.target.as_str()), want);
        }
    }
}
