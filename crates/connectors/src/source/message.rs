//! A message of another system, in the one form that all kinds of sources give it.

use bytes::Bytes;
use punctual_core::Timestamp;

/// The header with the content type of a body. Systems that have a property for it set it as this.
pub(crate) const CONTENT_TYPE: &str = "content-type";
/// The header with the id that the producer gave. Systems that have a property for it set it as
/// this.
pub(crate) const MESSAGE_ID: &str = "message-id";
/// The header of a rejected message that has the problem document.
pub(crate) const PROBLEM: &str = "punctual-problem";
/// The header of a rejected message that says where it came from.
pub(crate) const ORIGIN: &str = "punctual-origin";

/// Bytes of a problem document in a header. Some systems have small frames for headers.
const PROBLEM_BYTES_MAX: usize = 4096;

/// A message of another system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceMessage {
    /// Where it was published: the topic, the subject, the routing key or the stream.
    pub place: String,
    /// Tells it from all other messages of its source, and is the same whenever the system gives
    /// the message again, if the system has such a thing (ADR 0046).
    pub position: String,
    /// What the session knows it by.
    pub handle: u64,
    /// Headers, properties or fields, in their order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
    /// When the system took it, if it says so.
    pub sent_at: Option<Timestamp>,
}

impl SourceMessage {
    /// The first header with a name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The headers of the message at the dead-letter place.
    pub(crate) fn rejected_headers<'a>(
        &'a self,
        problem: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let others = [(PROBLEM, short_problem(problem)), (ORIGIN, self.place.as_str())];
        // Those of a message that was rejected before are replaced.
        own.filter(|(name, _)| *name != PROBLEM && *name != ORIGIN).chain(others)
    }

    /// Bytes that it uses in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        self.body.len() + self.place.len() + headers.sum::<usize>()
    }
}

/// The problem document, cut to what fits a header.
pub(crate) fn short_problem(problem: &str) -> &str {
    &problem[..problem.floor_char_boundary(PROBLEM_BYTES_MAX)]
}

/// A short name for a text that may have any characters.
pub(crate) fn digest_start(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..8].to_owned()
}
