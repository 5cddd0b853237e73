//! What a scenario needs of a server with messages.

use std::path::PathBuf;

/// A server with one queue, topic, subject or stream.
pub(crate) trait TestSystem: Sized {
    /// Whether messages are confirmed in their order only, so that one that waits holds back the
    /// confirmations of those behind it.
    const CONFIRMS_IN_ORDER: bool = false;
    /// Whether the system keeps messages for a reader that has stopped.
    const KEEPS_SHARES: bool = false;
    /// Whether messages that a reader has in hand can be given to one that comes.
    const GIVES_TO_NEW_READERS: bool = false;

    /// The page of the documentation: its first block of TOML is a connection, the second a source.
    const PAGE: &'static str;
    /// What the page has and this machine has otherwise: its host, and the secured port.
    const PAGE_HOST: &'static str;
    /// A place that the source of the page reads.
    const PAGE_PLACE: &'static str;

    /// A server that has a place for messages of this test alone.
    fn start() -> Self;

    /// A server that no other test uses.
    fn start_own() -> Self {
        Self::start()
    }

    /// Makes another place, to which messages are sent from now on.
    fn use_place(&mut self, place: &str);

    /// The port that it listens on.
    fn port(&self) -> u16;

    /// The lines of a connection, over a port that leads to the server.
    fn connection(&self, port: u16) -> String;

    /// The lines of a connection with TLS, an account and a password, and what they need.
    fn secured(&self) -> SecuredConnection;

    /// The lines of the source.
    fn source(&self) -> String;

    /// The configuration: a connection by way of a port, and one source of it. `more` are more keys
    /// of the source.
    fn config(&self, port: u16, more: &str) -> String {
        self.config_of(&self.connection(port), more)
    }

    /// The configuration with the lines of a connection.
    fn config_of(&self, connection: &str, more: &str) -> String {
        let source = self.source();
        format!(
            "[connections.mq]\n{connection}\n[[sources]]\nconnection = \"mq\"\n\
             namespace = \"shop\"\n{source}\n{more}\n"
        )
    }

    /// Sends messages and waits until the server has them.
    fn send(&self, messages: &[TestMessage]);

    /// How many messages the server has not had confirmed. None of the readers runs.
    fn unconfirmed(&self, readers: &[&str]) -> usize;

    /// The problems and bodies of the rejected messages.
    fn rejected(&self) -> Vec<(String, String)>;

    /// Ends the server, by a kill if it then has what it has confirmed, and starts it again.
    fn restart(&mut self);
}

/// A connection that needs TLS, an account and a password.
pub(crate) struct SecuredConnection {
    /// The lines of the connection without `tls_ca` and `password`.
    pub(crate) lines: String,
    pub(crate) authority: PathBuf,
    pub(crate) port: u16,
    pub(crate) password: &'static str,
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
