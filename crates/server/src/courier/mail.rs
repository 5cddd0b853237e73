//! Sends the notices of alarms as mails through the mail server of the broker's configuration.
//!
//! Each mail has a connection of its own (`server`): notices are rare, and a connection that was
//! kept would usually be closed by the server in between. The permit of the delivery is checked
//! right before the first byte of the message; a mail that is recalled until then was not sent.
//!
//! An address that the server refuses for good does not keep the mail from the others. Errors that
//! say that the server, its certificate or the credentials are at fault are failed attempts, since
//! the next one may succeed; a mail that the server refuses for good is refused. Neither addresses
//! nor texts are logged.

mod message;
mod server;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::response::Response;
use punctual_core::{Answer, AttemptResult, Clock as _, MailTarget, Outcome, Reason, Target};
use punctual_engine::{Delivery, NotSendable};
use tokio::time::timeout;

use self::message::MailMessage;
use self::server::ConnectError;
pub use self::server::MailServer;
pub(crate) use self::server::{MailServerUrl, SmtpCredentials};
use super::inner_error;
use super::stop::StopSignal;
use crate::clock::SystemClock;
use crate::shares::{ShareKey, Shares};
use crate::telemetry::Telemetry;

/// Mails that are sent at once, of all namespaces together. Mail servers commonly accept a few
/// connections from one client.
const MAILS_MAX: usize = 8;
/// How long the end of a connection may take, after the mail was taken.
const QUIT_MAX: Duration = Duration::from_secs(1);

/// Carries deliveries to a mail server.
#[derive(Debug)]
pub(crate) struct MailCourier {
    server: Option<MailServer>,
    mails: Shares,
    /// Bytes of each answer that are kept.
    answer_bytes: usize,
    clock: Arc<SystemClock>,
    telemetry: Telemetry,
    stop: StopSignal,
}

/// Why a mail was not taken.
enum MailError {
    /// The owner does not allow it to be sent any more.
    NotSendable(NotSendable),
    /// The next attempt may succeed.
    Failed(String),
    /// No attempt will succeed.
    Refused(String),
}

impl MailCourier {
    pub(crate) fn new(
        server: Option<MailServer>,
        answer_bytes: usize,
        clock: Arc<SystemClock>,
        telemetry: Telemetry,
    ) -> Self {
        let (mails, stop) = (Shares::new(MAILS_MAX), StopSignal::new());
        Self { server, mails, answer_bytes, clock, telemetry, stop }
    }

    /// Sends one delivery and sets its `fired_at`. Returns its result; `None` if it counts as not
    /// sent.
    pub(crate) async fn deliver(&self, delivery: &mut Delivery) -> Option<AttemptResult> {
        let (permit, guarantee) = (delivery.permit.clone(), delivery.definition.guarantee);
        let fire_id = delivery.fire_id;
        let sending = self.send(delivery);
        let result = self.stop.unless_stopped(fire_id, permit, guarantee, sending).await?;
        if result.outcome != Outcome::Acked {
            let attempt = delivery.attempt.get();
            tracing::debug!(%fire_id, attempt, "mail not sent");
        }
        self.telemetry.mail(&result.outcome);
        self.telemetry.attempt(delivery, &result.outcome, self.clock.now());
        Some(result)
    }

    /// Returns whether no delivery is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.stop.is_idle()
    }

    /// Stops waiting for answers. Returns how many deliveries were in flight.
    pub(crate) fn give_up(&self) -> usize {
        self.stop.give_up()
    }

    /// Returns `None` if the owner does not allow it to be sent any more.
    async fn send(&self, delivery: &mut Delivery) -> Option<AttemptResult> {
        let definition = Arc::clone(&delivery.definition);
        // To wait for others is not a part of the attempt.
        let _permit = self.mails.acquire(&ShareKey::of(definition.namespace.clone())).await;
        let attempt = match &definition.target {
            Target::Mail(target) => self.attempt(delivery, target),
            Target::Http(_) | Target::Queue(_) | Target::Sink(_) | Target::Grpc(_) => {
                return Some(refused("not a mail").into());
            }
        };
        let outcome = match timeout(definition.timeout, attempt).await {
            Ok(Ok(answer)) => {
                let answer = Some(Box::new(answer));
                return Some(AttemptResult { outcome: Outcome::Acked, answer });
            }
            Ok(Err(MailError::NotSendable(why))) => {
                tracing::debug!(fire_id = %delivery.fire_id, %why, "delivery not sent");
                return None;
            }
            Ok(Err(MailError::Failed(reason))) => failed(&reason),
            Ok(Err(MailError::Refused(reason))) => refused(&reason),
            Err(_) => Outcome::Expired,
        };
        Some(outcome.into())
    }

    async fn attempt(
        &self,
        delivery: &mut Delivery,
        target: &MailTarget,
    ) -> Result<Answer, MailError> {
        delivery.fired_at = self.clock.now();
        delivery.permit.check(delivery.fired_at)?;
        let server = self.server.as_ref().ok_or_else(|| {
            MailError::Failed("this broker has no mail server: start it with --smtp-url".to_owned())
        })?;
        let mail = MailMessage::new(server.from(), target, delivery).map_err(MailError::Refused)?;
        let mut connection = server.connect(delivery.definition.timeout).await?;
        let refusals = announce(&mut connection, &mail).await?;
        delivery.fired_at = self.clock.now();
        delivery.permit.send(delivery.fired_at)?;
        let taken = connection.message(mail.bytes()).await.map_err(MailError::of_reply)?;
        // The mail was taken: what comes now must not change that.
        tokio::spawn(async move { timeout(QUIT_MAX, connection.quit()).await });
        Ok(answer(&taken, &refusals, self.answer_bytes))
    }
}

/// Names the sender and the recipients to the server. Returns the replies to the recipients that it
/// refuses for good; if it refuses all, the mail is refused.
async fn announce(
    connection: &mut AsyncSmtpConnection,
    mail: &MailMessage,
) -> Result<Vec<String>, MailError> {
    let sender = Mail::new(Some(mail.sender().clone()), vec![]);
    connection.command(sender).await.map_err(MailError::of_reply)?;
    let mut refusals = Vec::new();
    for recipient in mail.recipients() {
        match connection.command(Rcpt::new(recipient.clone(), vec![])).await {
            Ok(_) => {}
            Err(error) if error.is_permanent() => refusals.push(reply(&error)),
            Err(error) => return Err(MailError::of_reply(error)),
        }
    }
    if refusals.len() == mail.recipients().len() {
        let reason = format!("the mail server refuses all addresses: {}", refusals.join("; "));
        return Err(MailError::Refused(reason));
    }
    connection.command(Data).await.map_err(MailError::of_reply)?;
    Ok(refusals)
}

/// What the server said when it took the mail, and to the addresses that it refused.
fn answer(taken: &Response, refusals: &[String], bytes_max: usize) -> Answer {
    let mut lines: Vec<&str> = taken.message().collect();
    let refused: Vec<String> =
        refusals.iter().map(|reply| format!("an address was refused: {reply}")).collect();
    lines.extend(refused.iter().map(String::as_str));
    let text = lines.join("\n");
    Answer::of_response(taken.code().into(), "text/plain", text.as_bytes(), true, bytes_max)
}

impl MailError {
    /// The error of a command that concerns the mail.
    fn of_reply(error: SmtpError) -> Self {
        let reason = format!("the mail server answered {}", reply(&error));
        match error.is_permanent() {
            true => Self::Refused(reason),
            false if error.is_transient() => Self::Failed(reason),
            false => Self::Failed(format!("no answer from the mail server: {}", reply(&error))),
        }
    }
}

impl From<NotSendable> for MailError {
    fn from(why: NotSendable) -> Self {
        Self::NotSendable(why)
    }
}

impl From<ConnectError> for MailError {
    fn from(error: ConnectError) -> Self {
        Self::Failed(match error {
            ConnectError::Server(error) if is_untrusted(&error) => {
                let hint = "if its authority is a private one, give it with --smtp-ca";
                format!("no trusted mail server: {}; {hint}", reply(&error))
            }
            ConnectError::Server(error) => format!("no mail server: {}", reply(&error)),
            ConnectError::Credentials(error) => format!(
                "the mail server does not accept the credentials of --smtp-credentials-file: {}",
                reply(&error)
            ),
        })
    }
}

/// The code and the text of a reply, or the innermost error, which has the useful text.
fn reply(error: &SmtpError) -> String {
    let cause = innermost(error);
    match error.status() {
        Some(code) => format!("{code} {cause}"),
        None => cause.to_string(),
    }
}

fn is_untrusted(error: &SmtpError) -> bool {
    let cause = innermost(error).downcast_ref();
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

fn innermost(error: &SmtpError) -> &(dyn Error + 'static) {
    let mut cause: &(dyn Error + 'static) = error;
    while let Some(source) = inner_error(cause) {
        cause = source;
    }
    cause
}

fn refused(reason: &str) -> Outcome {
    Outcome::Refused { reason: Reason::new(reason) }
}

fn failed(reason: &str) -> Outcome {
    Outcome::Failed { reason: Reason::new(reason), retry_in: None }
}
