//! What a scenario needs of a server with messages.

/// A server with one queue, topic, subject or stream.
pub(crate) trait TestSystem: Sized {
    /// Whether messages are confirmed in their order only, so that one that waits holds back the
    /// confirmations of those behind it.
    const CONFIRMS_IN_ORDER: bool = false;
    /// Whether the system keeps messages for a reader that has stopped.
    const KEEPS_SHARES: bool = false;

    /// A server that has a place for messages of this test alone.
    fn start() -> Self;

    /// A server that no other test uses.
    fn start_own() -> Self {
        Self::start()
    }

    /// The port that it listens on.
    fn port(&self) -> u16;

    /// The configuration: a connection `mq` by way of a port, and one source of it. `more` are more
    /// keys of the source.
    fn config(&self, port: u16, more: &str) -> String;

    /// Sends messages and waits until the server has them.
    fn send(&self, messages: &[TestMessage]);

    /// How many messages the server has not had confirmed. None of the readers runs.
    fn unconfirmed(&self, readers: &[&str]) -> usize;

    /// The problems and bodies of the rejected messages.
    fn rejected(&self) -> Vec<(String, String)>;

    /// Ends the server, by a kill if it then has what it has confirmed, and starts it again.
    fn restart(&mut self);
}

/// A message as a producer sends it.
#[derive(Debug, Clone, Default)]
pub(crate) struct TestMessage {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl TestMessage {
    /// A schedule without a key, under an id of its producer.
    pub(crate) fn schedule(number: usize) -> Self {
        let id = format!("m-{number}");
        Self::with(&[("webhook-id", &id), ("punctual-in", "1h")], &number.to_string())
    }

    /// A command about a key.
    pub(crate) fn of_key(verb: &str, key: &str, body: &str) -> Self {
        let headers = [("punctual-verb", verb), ("punctual-key", key), ("punctual-in", "1h")];
        let count = if verb == "schedule" { 3 } else { 2 };
        Self::with(&headers[..count], body)
    }

    pub(crate) fn with(headers: &[(&str, &str)], body: &str) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self { headers: headers.collect(), body: body.to_owned() }
    }
}

/// Runs a conversation with a server to its end, on a thread of its own: a scenario has a runtime.
pub(crate) fn block_on<T: Send>(conversation: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(conversation)
    })
}
