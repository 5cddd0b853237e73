//! Reads the messages of one source: takes a batch, applies it, confirms what is durable.
//!
//! Messages that the broker refuses are held: they are applied again, before those that follow them
//! under the same key. While the broker refuses everything, one message more is taken after each
//! pause, until a batch is held. A session that is
//! lost is opened again after a pause, and gives what was not confirmed again, under the same ids.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use punctual_sql::Pauses;
use tokio::sync::watch;
use tokio::time::timeout;

use super::in_order::apply_in_order;
use super::intake::{Applied, Intake};
use super::mapping::SourceMapping;
use super::message::SourceMessage;
use super::open::open_by;
use super::session::{MessageEnd, MessageSession, MessageSource, TakeBound};
use super::state::SourceStatus;
use crate::source_settings::MessageSourceSettings;

/// Bytes of the messages that are in memory at once, but for one message that is larger.
const BYTES_MAX: usize = 16 << 20;
/// How long one read waits for a message: a broker that stops waits as long.
const TAKE_WAIT: Duration = Duration::from_millis(500);
/// How long opening a session may take.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// How long the other side may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long the broker may take to apply a batch. Systems give messages again after 30 s.
const APPLY_MAX: Duration = Duration::from_secs(15);
/// The pause after the broker has refused all commands.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// Reads the messages of one source.
pub struct MessageReader {
    mapping: SourceMapping,
    source: Box<dyn MessageSource>,
    intake: Arc<dyn Intake>,
    status: Arc<SourceStatus>,
    batch: usize,
}

impl fmt::Debug for MessageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageReader").field("source", &self.source).finish_non_exhaustive()
    }
}

/// What a session holds.
#[derive(Debug, Default)]
struct HeldMessages {
    messages: Vec<SourceMessage>,
    /// Whether the broker has refused all that it was given last.
    refused: bool,
}

impl MessageReader {
    /// A reader that does not run yet.
    ///
    /// `reader` is the name of this broker among the readers of the source. It must be the same
    /// when the broker starts again, and no other reader may have it.
    #[must_use]
    pub fn new(
        settings: &MessageSourceSettings,
        reader: &str,
        intake: Arc<dyn Intake>,
        status: Arc<SourceStatus>,
    ) -> Self {
        let source = open_by(settings, settings.reader.as_deref().unwrap_or(reader));
        let (mapping, batch) = (settings.mapping.clone(), settings.batch);
        Self { mapping, source, intake, status, batch }
    }

    /// Reads messages until `stop` is true, and then ends its session. Dropped between two awaits,
    /// it loses nothing; but what it has applied and not confirmed is given again.
    pub async fn run(&self, mut stop: watch::Receiver<bool>) {
        let mut pauses = Pauses::default();
        while !*stop.borrow() {
            let pause = pauses.current();
            if wait_unless(&mut stop, pause).await {
                return;
            }
            let lost = match within(OPEN_MAX, self.source.open()).await {
                Ok(session) => self.read(session, &mut stop, &mut pauses).await,
                Err(problem) => Some(problem),
            };
            let Some(problem) = lost else { return };
            pauses.failed();
            self.status.failed(problem);
        }
    }

    /// Reads with one session. Returns why it was lost, or `None` if the reader stops.
    async fn read(
        &self,
        mut session: Box<dyn MessageSession>,
        stop: &mut watch::Receiver<bool>,
        pauses: &mut Pauses,
    ) -> Option<String> {
        let mut held = HeldMessages::default();
        loop {
            if *stop.borrow() {
                let _ = timeout(ANSWER_MAX, session.close()).await;
                return None;
            }
            if let Err(problem) = self.round(&mut *session, &mut held).await {
                return Some(problem);
            }
            pauses.succeeded();
            if held.refused {
                wait_unless(stop, REFUSED_PAUSE).await;
            }
        }
    }

    async fn round(
        &self,
        session: &mut dyn MessageSession,
        held: &mut HeldMessages,
    ) -> Result<(), String> {
        let mut messages = std::mem::take(&mut held.messages);
        let space = self.batch.saturating_sub(messages.len());
        let bytes = BYTES_MAX.saturating_sub(messages.iter().map(SourceMessage::bytes).sum());
        if space > 0 && bytes > 0 {
            // If the broker refuses everything, one message more shows when it does so no longer:
            // those that are held may wait for reasons of their own.
            let space = if held.refused { 1 } else { space };
            let wait = if messages.is_empty() { TAKE_WAIT } else { Duration::ZERO };
            let bound = TakeBound { messages: space, bytes, wait };
            messages.extend(within(ANSWER_MAX, session.take(bound)).await?);
        }
        let now = self.status.read();
        if messages.is_empty() {
            self.status.works();
            return Ok(());
        }
        let oldest = messages.iter().filter_map(|message| message.sent_at).min();
        let lag = oldest.map_or(Duration::ZERO, |oldest| now.since(oldest));
        let (ends, refused) = self.apply(messages, held).await;
        let rejected =
            ends.iter().filter(|(_, end)| matches!(end, MessageEnd::Rejected(_))).count();
        if !ends.is_empty() {
            within(ANSWER_MAX, session.settle(&ends)).await?;
        }
        if !held.messages.is_empty() {
            within(ANSWER_MAX, session.hold(&held.messages)).await?;
        }
        held.refused = ends.is_empty();
        self.status.settled(ends.len() - rejected, rejected, lag, refused.as_deref());
        Ok(())
    }

    /// Applies messages. What the broker refuses is held; the text says why.
    async fn apply(
        &self,
        messages: Vec<SourceMessage>,
        held: &mut HeldMessages,
    ) -> (Vec<(SourceMessage, MessageEnd)>, Option<String>) {
        let mut commands = Vec::with_capacity(messages.len());
        let mut problems = Vec::with_capacity(messages.len());
        for message in &messages {
            problems.push(match self.mapping.command(message) {
                Ok(command) => {
                    commands.push(command);
                    None
                }
                Err(problem) => Some(problem),
            });
        }
        let applied = apply_in_order(&*self.intake, commands, APPLY_MAX).await;
        let mut applied = applied.into_iter();
        let (mut ends, mut refused) = (Vec::with_capacity(messages.len()), None);
        for (message, problem) in messages.into_iter().zip(problems) {
            let applied = match problem {
                Some(problem) => Some(Applied::Rejected(problem)),
                None => applied.next(),
            };
            match applied {
                Some(Applied::Done) => ends.push((message, MessageEnd::Done)),
                Some(Applied::Rejected(problem)) => {
                    ends.push((message, MessageEnd::Rejected(problem)));
                }
                Some(Applied::Later(why)) => {
                    refused.get_or_insert(why);
                    held.messages.push(message);
                }
                None => held.messages.push(message),
            }
        }
        (ends, refused)
    }
}

/// Waits, but not longer than until the reader stops. Returns whether it stops.
async fn wait_unless(stop: &mut watch::Receiver<bool>, pause: Duration) -> bool {
    // The sender lives as long as the broker; without it the reader stops.
    timeout(pause, stop.wait_for(|stops| *stops)).await.is_ok()
}

async fn within<T, E: ToString>(
    max: Duration,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match timeout(max, answer).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", max.as_secs())),
    }
}
