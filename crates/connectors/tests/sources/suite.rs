//! The scenarios. Each starts with a new server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use punctual_connectors::{
    ConnectionSettings, ConnectorConfig, ConnectorEvent, MessageReader, SourceSettings,
    SourceState, SourceStatus,
};
use punctual_core::{Clock, Timestamp};
use punctual_test_support::{CutLink, WAIT_MAX, now_millis};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::intake::{IntakeRefusal, TestIntake};
use crate::system::{SecuredConnection, TestMessage, TestSystem};

#[derive(Debug)]
struct SuiteClock;

impl Clock for SuiteClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(now_millis().try_into().unwrap())
    }

    fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }
}

#[derive(serde::Deserialize)]
struct SourceConfigFile {
    connections: BTreeMap<String, ConnectionSettings>,
    sources: Vec<SourceSettings>,
}

/// A reader as a broker runs it.
pub(crate) struct RunningReader {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
    status: Arc<SourceStatus>,
}

impl RunningReader {
    pub(crate) fn start(config: &str, name: &str, intake: &TestIntake) -> Self {
        let config: SourceConfigFile = toml::from_str(config).unwrap();
        let config = ConnectorConfig::read(&config.connections, &config.sources).unwrap();
        let settings = &config.message_sources[0];
        let (clock, observer) = (Arc::new(SuiteClock), Arc::new(|_: ConnectorEvent<'_>| ()));
        let status = SourceStatus::new(settings.name(), settings.namespace(), clock, observer);
        let status = Arc::new(status);
        let intake = Arc::new(intake.clone());
        let reader = MessageReader::new(settings, name, intake, Arc::clone(&status));
        let stop = watch::Sender::new(false);
        let stopped = stop.subscribe();
        let task = tokio::spawn(async move { reader.run(stopped).await });
        Self { task, stop, status }
    }

    pub(crate) fn state(&self) -> SourceState {
        self.status.state()
    }

    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        timeout(WAIT_MAX, self.task).await.unwrap().unwrap();
    }

    /// Ends it as a kill of the broker does: nothing is said to the server.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        let mut ticks = interval(Duration::from_millis(20));
        // A condition can take longer than a tick. Ticks that are made up for would never let the
        // timeout have its turn.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !condition() {
            ticks.tick().await;
        }
    };
    let waited = timeout(WAIT_MAX, wait).await;
    assert!(waited.is_ok(), "waited too long for {what}");
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn schedules(range: std::ops::Range<usize>) -> Vec<TestMessage> {
    range.map(TestMessage::schedule).collect()
}

pub(crate) fn a_message_is_confirmed_once_it_is_durable<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        intake.die(true);
        let config = system.config(system.port(), "");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&schedules(0..3));
        until("the messages", || intake.given() > 0).await;
        reader.kill().await;
        until("messages without confirmation", || system.unconfirmed(&["a"]) == 3).await;
        intake.die(false);
        let reader = RunningReader::start(&config, "a", &intake);
        until("all messages", || intake.applied() == 3).await;
        until("the count", || reader.state().applied == 3).await;
        reader.stop().await;
        until("the confirmations", || system.unconfirmed(&["a"]) == 0).await;
    });
}

pub(crate) fn nothing_is_taken_while_the_broker_refuses<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        intake.refuse(IntakeRefusal::Everything);
        let config = system.config(system.port(), "batch = 10");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&schedules(0..100));
        until("some calls", || intake.calls() >= 3).await;
        let calls = intake.calls();
        until("more calls", || intake.calls() >= calls + 3).await;
        let problem = reader.state().problem.unwrap();
        assert_eq!((intake.applied(), problem.as_str()), (0, "busy"));
        assert!(intake.given() <= 10 * intake.calls(), "more than a batch was taken");
        reader.stop().await;
        until("messages without confirmation", || system.unconfirmed(&["a"]) == 100).await;
        let reader = RunningReader::start(&config, "a", &intake);
        until("a problem", || reader.state().problem.is_some()).await;
        intake.refuse(IntakeRefusal::Nothing);
        until("all messages", || intake.applied() == 100).await;
        until("no problem", || reader.state().problem.is_none()).await;
        reader.stop().await;
        until("the confirmations", || system.unconfirmed(&["a"]) == 0).await;
    });
}

pub(crate) fn a_message_that_is_given_again_is_applied_once<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        intake.die(true);
        let config = system.config(system.port(), "");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&schedules(0..20));
        until("the messages", || intake.applied() > 0).await;
        reader.kill().await;
        intake.die(false);
        // The producer did not hear of its success either, and has sent one again.
        system.send(&[TestMessage::schedule(7)]);
        let before = intake.given();
        let reader = RunningReader::start(&config, "a", &intake);
        until("all messages", || intake.given() > before.max(20)).await;
        until("all messages", || reader.state().applied >= 21).await;
        reader.stop().await;
        until("the confirmations", || system.unconfirmed(&["a"]) == 0).await;
        assert_eq!(intake.applied(), 20);
        assert!(intake.given() > 21, "nothing was given again");
    });
}

pub(crate) fn a_poison_message_goes_aside_with_the_problem_and_blocks_nothing<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        let config = system.config(system.port(), "");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        let mut messages = schedules(0..4);
        messages.insert(1, TestMessage::with(&[("punctual-verb", "explode")], "first"));
        messages.insert(3, TestMessage::with(&[("punctual-in", "1h")], "\"poison\""));
        system.send(&messages);
        until("the good messages", || intake.applied() == 4).await;
        until("the bad ones", || system.rejected().len() == 2).await;
        let mut rejected = system.rejected();
        rejected.sort();
        let (problem, body) = &rejected[1];
        assert!(problem.contains("punctual-verb") && problem.contains("explode"), "{problem}");
        assert_eq!(body, "first");
        assert_eq!(rejected[0], ("{\"detail\":\"poison\"}".to_owned(), "\"poison\"".to_owned()));
        let counts = || (reader.state().applied, reader.state().rejected);
        until("the counts", || counts() == (4, 2)).await;
        reader.stop().await;
        until("the confirmations", || system.unconfirmed(&["a"]) == 0).await;
    });
}

pub(crate) fn commands_of_a_key_keep_their_order<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        let config = system.config(system.port(), "batch = 7");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        let messages: Vec<_> = (0..40)
            .flat_map(|round| {
                let body = round.to_string();
                ["a", "b"].map(|key| match round % 5 {
                    4 => TestMessage::of_key("cancel", key, ""),
                    _ => TestMessage::of_key("schedule", key, &body),
                })
            })
            .collect();
        system.send(&messages);
        until("all commands", || intake.applied() == 80).await;
        let expected = (0..40).map(|round| match round % 5 {
            4 => "cancel".to_owned(),
            _ => round.to_string(),
        });
        let expected: Vec<_> = expected.collect();
        assert_eq!((intake.history("a"), intake.history("b")), (expected.clone(), expected));
        reader.stop().await;
    });
}

pub(crate) fn a_message_that_waits_holds_up_its_key_only<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        intake.refuse(IntakeRefusal::Key("stuck".to_owned()));
        let batch = if S::CONFIRMS_IN_ORDER { "batch = 100" } else { "batch = 10" };
        let config = system.config(system.port(), batch);
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&[
            TestMessage::of_key("schedule", "stuck", "1"),
            TestMessage::of_key("schedule", "free", "2"),
            TestMessage::of_key("cancel", "stuck", ""),
        ]);
        until("the free key", || intake.history("free") == ["2"]).await;
        system.send(&schedules(0..50));
        until("what came later", || intake.applied() == 51).await;
        assert!(intake.history("stuck").is_empty());
        intake.refuse(IntakeRefusal::Nothing);
        until("the key that waited", || intake.history("stuck") == ["1", "cancel"]).await;
        reader.stop().await;
        until("the confirmations", || system.unconfirmed(&["a"]) == 0).await;
    });
}

pub(crate) fn messages_come_again_when_the_server_was_restarted<S: TestSystem>() {
    let mut system = S::start_own();
    runtime().block_on(async {
        let intake = TestIntake::default();
        let config = system.config(system.port(), "");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&schedules(0..50));
        until("the first messages", || intake.applied() == 50).await;
        intake.refuse(IntakeRefusal::Everything);
        system.send(&schedules(50..100));
        let given = intake.given();
        until("a message in hand", || intake.given() > given).await;
        tokio::task::block_in_place(|| system.restart());
        intake.refuse(IntakeRefusal::Nothing);
        until("all messages", || intake.applied() == 100).await;
        stop_when_confirmed(&system, reader, &config, &intake).await;
        assert_eq!(intake.applied(), 100);
    });
}

pub(crate) fn a_link_that_is_cut_loses_nothing<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        let link = CutLink::to(system.port());
        let config = system.config(link.port, "batch = 20");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        for round in 0..5 {
            system.send(&schedules(round * 40..(round + 1) * 40));
            until("some messages", || intake.applied() > round * 40).await;
            link.cut();
            if round == 0 {
                until("the problem", || reader.state().problem.is_some()).await;
            }
            link.mend();
        }
        until("all messages", || intake.applied() == 200).await;
        stop_when_confirmed(&system, reader, &config, &intake).await;
        assert_eq!(intake.applied(), 200);
    });
}

/// Stops a reader. Confirmations may have been lost with a connection: then messages come again, to
/// the next reader.
async fn stop_when_confirmed<S: TestSystem>(
    system: &S,
    mut reader: RunningReader,
    config: &str,
    intake: &TestIntake,
) {
    let mut ticks = interval(Duration::from_secs(1));
    for _ in 0..10 {
        reader.stop().await;
        if system.unconfirmed(&["a"]) == 0 {
            return;
        }
        reader = RunningReader::start(config, "a", intake);
        ticks.reset();
        ticks.tick().await;
    }
    panic!("{} messages are not confirmed", system.unconfirmed(&["a"]));
}

pub(crate) fn readers_share_the_messages<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        let config = system.config(system.port(), "batch = 10");
        let names = ["a", "b", "c"];
        let mut readers: Vec<_> =
            names.map(|name| RunningReader::start(&config, name, &intake)).into();
        for reader in &readers {
            until("the readers", || reader.state().read_at.is_some()).await;
        }
        for round in 0..10 {
            system.send(&schedules(round * 50..(round + 1) * 50));
        }
        until("all messages", || intake.applied() == 500).await;
        let shares = || readers.iter().map(|reader| reader.state().applied);
        until("the counts", || shares().sum::<u64>() >= 500).await;
        assert!(intake.given() == 500 || S::GIVES_TO_NEW_READERS, "some were taken twice");
        let shares: Vec<_> = shares().collect();
        assert!(shares.iter().filter(|share| **share > 0).count() > 1, "{shares:?}");
        // What one of them leaves is taken by the others.
        readers.remove(0).stop().await;
        system.send(&schedules(500..550));
        if S::KEEPS_SHARES {
            readers.push(RunningReader::start(&config, "a", &intake));
        }
        until("the rest", || intake.applied() == 550).await;
        for reader in readers {
            reader.stop().await;
        }
        until("the confirmations", || system.unconfirmed(&names) == 0).await;
    });
}

pub(crate) fn a_reader_that_stops_has_confirmed_what_it_has_applied<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        let config = system.config(system.port(), "batch = 20");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&schedules(0..1000));
        until("some messages", || intake.applied() > 0).await;
        reader.stop().await;
        let applied = intake.applied();
        until("the confirmations", || system.unconfirmed(&["a"]) == 1000 - applied).await;
        let reader = RunningReader::start(&config, "a", &intake);
        until("all messages", || intake.applied() == 1000).await;
        assert_eq!(intake.given(), 1000, "some were applied and not confirmed");
        reader.stop().await;
    });
}

pub(crate) fn a_silent_server_is_left_and_nothing_is_lost<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let intake = TestIntake::default();
        let link = CutLink::to(system.port());
        let config = system.config(link.port, "");
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&schedules(0..20));
        until("the first messages", || intake.applied() == 20).await;
        link.silence();
        system.send(&schedules(20..40));
        until("the problem", || reader.state().problem.is_some()).await;
        link.mend();
        until("all messages", || intake.applied() == 40).await;
        until("no problem", || reader.state().problem.is_none()).await;
        reader.stop().await;
    });
}

/// The configuration with a secured connection: its password, and the file of its authority.
fn secured<S: TestSystem>(system: &S, password: &Path, authority: &Path) -> String {
    let SecuredConnection { lines, .. } = system.secured();
    let (password, authority) = (password.display(), authority.display());
    let more = format!("password = \"@{password}\"\ntls_ca = \"{authority}\"\n");
    system.config_of(&format!("{lines}{more}"), "")
}

pub(crate) fn a_wrong_password_is_a_source_that_is_not_read_with_the_reason<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let SecuredConnection { authority, password, .. } = system.secured();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "wrong-secret").unwrap();
        let intake = TestIntake::default();
        let reader = RunningReader::start(&secured(&system, file.path(), &authority), "a", &intake);
        until("the reason", || reader.state().problem.is_some()).await;
        let state = reader.state();
        let problem = state.problem.unwrap();
        assert!(state.read_at.is_none() && !problem.contains("wrong-secret"), "{problem}");
        reader.stop().await;
        std::fs::write(&file, password).unwrap();
        let reader = RunningReader::start(&secured(&system, file.path(), &authority), "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&schedules(0..1));
        until("the message", || intake.applied() == 1).await;
        reader.stop().await;
    });
}

pub(crate) fn tls_checks_the_certificate_of_the_server<S: TestSystem>() {
    let system = S::start();
    runtime().block_on(async {
        let password = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&password, system.secured().password).unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&other, punctual_test_support::make_certificate().0).unwrap();
        let intake = TestIntake::default();
        let config = secured(&system, password.path(), other.path());
        let reader = RunningReader::start(&config, "a", &intake);
        until("the reason", || reader.state().problem.is_some()).await;
        let problem = reader.state().problem.unwrap();
        assert!(problem.to_lowercase().contains("certificate"), "{problem}");
        assert!(reader.state().read_at.is_none());
        reader.stop().await;
    });
}

pub(crate) fn the_configuration_of_the_documentation_works<S: TestSystem>() {
    let mut system = S::start_own();
    runtime().block_on(async {
        system.use_place(S::PAGE_PLACE);
        let SecuredConnection { authority, password, port, .. } = system.secured();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, password).unwrap();
        let mut config = String::new();
        for block in S::PAGE.split("```toml\n").skip(1).take(2) {
            for line in block.split("```").next().unwrap().lines() {
                let line = match line.split(' ').next() {
                    Some("password") => format!("password = \"@{}\"", file.path().display()),
                    Some("tls_ca") => format!("tls_ca = \"{}\"", authority.display()),
                    _ => line.replace(S::PAGE_HOST, &format!("127.0.0.1:{port}")),
                };
                config.push_str(&line);
                config.push('\n');
            }
        }
        let intake = TestIntake::default();
        let reader = RunningReader::start(&config, "a", &intake);
        until("a reader", || reader.state().read_at.is_some()).await;
        system.send(&schedules(0..3));
        until("the messages", || reader.state().applied == 3).await;
        let (keys, problem) = (S::PAGE.contains("key = \"{1}\""), reader.state().problem);
        assert!(intake.history("lamp-7").is_empty() != keys && problem.is_none(), "{problem:?}");
        reader.stop().await;
    });
}
