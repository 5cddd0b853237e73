//! Notices are sent to a real mail server, by a broker on the memory store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use punctual_core::{
    AlarmCondition, AlarmName, AlarmReceiver, AlarmRule, AlarmValue, AttemptRecord, Backoff,
    Clock as _, FireRecord, Jitter, Namespace, NewTask, Outcome, PartitionId, RetryPolicy,
    TIMEOUT_DEFAULT, TaskId,
};
use punctual_engine::{Cancelled, Condition, ScheduleCommand, StartState, Subject};
use punctual_store::{MemoryStore, TaskStore as _};
use punctual_store_any::AnyStore;
use punctual_test_support::ports::free_port;
use punctual_test_support::{SmtpOptions, SmtpServer, SmtpTls, SmtpTlsStart};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use super::tests::config;
use super::*;
use crate::alarms::notice::{NoticeFacts, NoticeKind, notice_task};
use crate::alarms::stored::StoredAlarm;
use crate::config::{MailSettings, mail_server};

/// How often a condition is checked.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// A broker that sends mails, and the handles that keep it alive.
struct MailingBroker {
    parts: BrokerParts,
    _alive: mpsc::Receiver<()>,
    _drain: watch::Sender<bool>,
}

impl MailingBroker {
    async fn start(url: &str, credentials: Option<&Path>, ca: Option<&Path>) -> Self {
        let from = Some("Punctual <alarms@example.org>");
        let settings = MailSettings { url: Some(url), from, credentials_file: credentials, ca };
        let mail_server = mail_server(settings).unwrap();
        Self::compose(Config { mail_server, answer_bytes: 1024, ..config() }).await
    }

    async fn compose(config: Config) -> Self {
        let store = Arc::new(Store::new(AnyStore::Memory(MemoryStore::default())));
        let (alive, dropped) = mpsc::channel(1);
        let (drain, draining) = watch::channel(false);
        let parts = compose(
            config.listen,
            &config,
            store,
            Partitions::ONE,
            SystemClock::start(),
            draining,
            alive,
        )
        .await;
        Self { parts: parts.unwrap(), _alive: dropped, _drain: drain }
    }

    async fn send(&self, recipients: &[&str]) -> TaskId {
        self.send_within(recipients, TIMEOUT_DEFAULT).await
    }

    /// Schedules a notice that is retried at short intervals.
    async fn send_within(&self, recipients: &[&str], timeout: Duration) -> TaskId {
        let broker = &self.parts.broker;
        let recipients = recipients.iter().map(|&it| it.to_owned()).collect();
        let window = Duration::from_secs(60);
        let rule = AlarmRule {
            when: AlarmCondition::Failures { count: 100, window },
            to: AlarmReceiver::Mail(recipients),
            repeat_after: None,
        };
        let (namespace, name) =
            (Namespace::new("shop").unwrap(), AlarmName::new("errors").unwrap());
        let now = broker.clock.now();
        let alarm = StoredAlarm::new(&namespace, &name, &rule, now);
        let value = Some(AlarmValue::Count(120));
        let facts = NoticeFacts { alarm: &alarm, kind: NoticeKind::Raised, value, now };
        let retry = RetryPolicy {
            attempts_max: 100,
            backoff: Backoff::Fixed(Duration::from_millis(50)),
            jitter: Jitter::default(),
        };
        let new_task = Arc::new(NewTask { retry, timeout, ..notice_task(&facts) });
        let (condition, start) = (Condition::Always, StartState::Scheduled);
        let command = ScheduleCommand { new_task, condition, receipt: None, start };
        broker.owners.any().schedule(command).await.unwrap().task().id
    }

    /// Waits until a notice has ended.
    async fn end_of(&self, id: TaskId) -> FireRecord {
        let mut ticks = interval(CHECK_EVERY);
        loop {
            ticks.tick().await;
            let store = &self.parts.broker.store;
            if let Some(record) = store.history(PartitionId::FIRST, id, 1).await.unwrap().pop() {
                return record;
            }
        }
    }

    /// Waits until an attempt of a notice has ended.
    async fn first_attempt(&self, id: TaskId) -> AttemptRecord {
        let mut ticks = interval(CHECK_EVERY);
        loop {
            ticks.tick().await;
            let store = &self.parts.broker.store;
            let task = store.get(PartitionId::FIRST, &[id]).await.unwrap().pop().unwrap();
            if let Some(attempt) = task.and_then(|task| task.attempts.into_iter().next()) {
                return attempt;
            }
        }
    }
}

fn reason(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Acked => ("acked", ""),
        Outcome::Failed { reason, .. } => ("failed", reason.as_str()),
        Outcome::Refused { reason } => ("refused", reason.as_str()),
        Outcome::Expired => ("expired", ""),
    }
}

/// A certificate for localhost that is its own authority, and its key, as files.
fn certificate(dir: &TempDir) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (cert, key)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_is_received_as_a_mail() {
    let port = free_port();
    let server = SmtpServer::start(port, SmtpOptions::default());
    let broker = MailingBroker::start(&format!("smtp://127.0.0.1:{port}"), None, None).await;
    assert!(broker.parts.broker.sends_mail);
    let id = broker.send(&["ops@example.org", "shop@example.org"]).await;
    let record = broker.end_of(id).await;
    let attempt = &record.attempts[0];
    assert_eq!(attempt.outcome, Outcome::Acked);
    let answer = attempt.answer.as_deref().unwrap();
    assert_eq!((answer.status(), &answer.body()[..]), (Some(250), &b"2.0.0 queued as test-1"[..]));

    let mails = server.mails();
    let [mail] = &mails[..] else { panic!("{mails:?}") };
    assert_eq!(mail.sender, "alarms@example.org");
    assert_eq!(mail.recipients, ["ops@example.org", "shop@example.org"]);
    let message_id = format!("<{}@example.org>", record.fire_id);
    assert_eq!(mail.header("Message-ID"), Some(&*message_id));
    let subject = "[Punctual] Alarm \"errors\" of namespace \"shop\" is raised";
    assert_eq!(mail.header("Subject"), Some(subject));
    let sentence = format!("{}: 120 attempts failed within 1m (limit 100).", &subject[11..]);
    // Long lines are broken by quoted-printable.
    let message = mail.message.replace("=\r\n", "");
    assert!(message.contains(&sentence), "{message}");
    let page = broker.parts.broker.telemetry.page(None, broker.parts.broker.clock.now());
    assert!(page.contains("punctual_mails_total{outcome=\"acked\"} 1"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_is_encrypted_and_sent_with_the_credentials_of_the_file() {
    let dir = TempDir::new().unwrap();
    let (cert, key) = certificate(&dir);
    let (right, wrong) = (dir.path().join("right"), dir.path().join("wrong"));
    std::fs::write(&right, "ops:hush:hush\n").unwrap();
    std::fs::write(&wrong, "ops:guess\n").unwrap();
    for (start, scheme, query) in
        [(SmtpTlsStart::AtOnce, "smtps", ""), (SmtpTlsStart::OnCommand, "smtp", "?tls=required")]
    {
        let port = free_port();
        let tls = Some(SmtpTls { cert: &cert, key: &key, start });
        let options = SmtpOptions { tls, credentials: Some("ops:hush:hush") };
        let server = SmtpServer::start(port, options);
        let url = format!("{scheme}://localhost:{port}{query}");

        let broker = MailingBroker::start(&url, Some(&right), Some(&cert)).await;
        let id = broker.send(&["ops@example.org"]).await;
        assert_eq!(broker.end_of(id).await.attempts[0].outcome, Outcome::Acked, "{start:?}");
        assert_eq!(server.mails().len(), 1);
        assert_eq!(server.mails()[0].user, "ops");

        for (credentials, ca, want) in [
            (
                &wrong,
                Some(&*cert),
                "does not accept the credentials of --smtp-credentials-file: 535",
            ),
            (&right, None, "if its authority is a private one, give it with --smtp-ca"),
        ] {
            let broker = MailingBroker::start(&url, Some(credentials), ca).await;
            let id = broker.send(&["ops@example.org"]).await;
            let attempt = broker.first_attempt(id).await;
            let (outcome, reason) = reason(&attempt.outcome);
            assert_eq!(outcome, "failed", "{start:?}");
            assert!(reason.contains(want) && !reason.contains("guess"), "{reason}");
        }
        assert_eq!(server.mails().len(), 1, "nothing was sent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn starttls_that_is_required_is_not_skipped() {
    let port = free_port();
    let server = SmtpServer::start(port, SmtpOptions::default());
    let url = format!("smtp://127.0.0.1:{port}?tls=required");
    let broker = MailingBroker::start(&url, None, None).await;
    let id = broker.send(&["ops@example.org"]).await;
    let attempt = broker.first_attempt(id).await;
    let want = ("failed", "no mail server: STARTTLS is not supported on this server");
    assert_eq!(reason(&attempt.outcome), want);
    assert_eq!(server.mails(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_is_retried_until_the_server_is_there_and_received_once() {
    let port = free_port();
    let broker = MailingBroker::start(&format!("smtp://127.0.0.1:{port}"), None, None).await;
    let id = broker.send(&["ops@example.org"]).await;
    let attempt = broker.first_attempt(id).await;
    let (outcome, reason) = reason(&attempt.outcome);
    assert_eq!(outcome, "failed");
    assert!(reason.starts_with("no mail server: Connection refused"), "{reason}");
    let server = SmtpServer::start(port, SmtpOptions::default());
    let record = broker.end_of(id).await;
    assert_eq!(record.attempts.last().unwrap().outcome, Outcome::Acked);
    let mails = server.mails();
    assert_eq!(mails.len(), 1, "{mails:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_refused_does_not_keep_the_mail_from_the_others() {
    let port = free_port();
    let server = SmtpServer::start(port, SmtpOptions::default());
    let broker = MailingBroker::start(&format!("smtp://127.0.0.1:{port}"), None, None).await;
    let id = broker.send(&["unknown@example.org", "ops@example.org"]).await;
    let record = broker.end_of(id).await;
    let attempt = &record.attempts[0];
    assert_eq!(attempt.outcome, Outcome::Acked);
    let answer = attempt.answer.as_deref().unwrap();
    let want = "2.0.0 queued as test-1\nan address was refused: 550 5.1.1 no such user";
    assert_eq!(answer.body(), want);
    assert_eq!(server.mails()[0].recipients, ["ops@example.org"]);

    let id = broker.send(&["unknown@example.org"]).await;
    let record = broker.end_of(id).await;
    let want = "the mail server refuses all addresses: 550 5.1.1 no such user";
    assert_eq!(reason(&record.attempts[0].outcome), ("refused", want));
    assert_eq!(record.attempts.len(), 1);

    let id = broker.send(&["ops@example.org", "busy@example.org"]).await;
    let attempt = broker.first_attempt(id).await;
    let want = "the mail server answered 450 4.2.1 try again later";
    assert_eq!(reason(&attempt.outcome), ("failed", want));
    assert_eq!(server.mails().len(), 1, "all addresses wait for the one that is busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_a_mail_server_says_so() {
    let broker = MailingBroker::compose(config()).await;
    assert!(!broker.parts.broker.sends_mail);
    let id = broker.send(&["ops@example.org"]).await;
    let attempt = broker.first_attempt(id).await;
    let want = "this broker has no mail server: start it with --smtp-url";
    assert_eq!(reason(&attempt.outcome), ("failed", want));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_that_is_recalled_before_its_first_byte_is_not_sent() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("smtp://{}", silent.local_addr().unwrap());
    let broker = MailingBroker::start(&url, None, None).await;
    let id = broker.send(&["ops@example.org"]).await;
    let (mut connection, _) = silent.accept().await.unwrap();
    let owner = broker.parts.broker.owners.any();
    let cancelled = owner.cancel(Subject::Id(Namespace::new("shop").unwrap().of_notices(), id));
    assert_eq!(cancelled.await, Ok(Cancelled::Cancelled));
    let mut sent = Vec::new();
    connection.read_to_end(&mut sent).await.unwrap();
    assert_eq!(sent, b"", "the connection was closed and nothing sent");
    let page = broker.parts.broker.telemetry.page(None, broker.parts.broker.clock.now());
    assert!(!page.contains("punctual_mails_total{"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_in_time_is_tried_again() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("smtp://{}", silent.local_addr().unwrap());
    let broker = MailingBroker::start(&url, None, None).await;
    let id = broker.send_within(&["ops@example.org"], Duration::from_millis(20)).await;
    let _first = silent.accept().await.unwrap();
    assert_eq!(broker.first_attempt(id).await.outcome, Outcome::Expired);
    let _second = silent.accept().await.unwrap();
}
