//! The sources of the configuration, while they run.

use std::sync::Arc;

use punctual_connectors::{ConnectorConfig, MessageReader, Observer, OutboxSource, SourceStatus};
use punctual_core::Clock;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::broker::Broker;
use crate::clock::SystemClock;
use crate::config::ConfigError;
use crate::intake::BrokerIntake;
use crate::telemetry::Telemetry;

/// The sources of a broker. They end when the value is dropped.
#[derive(Debug)]
pub(crate) struct RunningSources {
    /// Their rounds are transactions, which end with them.
    _outboxes: JoinSet<()>,
    readers: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl RunningSources {
    /// Starts the sources, after checking the tasks that they would create.
    pub(crate) fn start(
        config: &ConnectorConfig,
        broker: &Arc<Broker>,
    ) -> Result<Self, ConfigError> {
        let stop = watch::Sender::new(false);
        let reader = reader_name(broker.address.port());
        let (mut outboxes, mut readers) = (JoinSet::new(), JoinSet::new());
        let mut statuses = Vec::new();
        let mut status = |name: String, namespace| {
            let clock = Arc::clone(&broker.clock) as Arc<dyn Clock>;
            let observer = observer(&broker.telemetry, &broker.clock);
            let status = Arc::new(SourceStatus::new(name, namespace, clock, observer));
            statuses.push(Arc::clone(&status));
            status
        };
        for settings in &config.sources {
            let intake = Arc::new(BrokerIntake::new(Arc::clone(broker), settings.target()));
            let status = status(settings.name(), settings.namespace());
            let source = OutboxSource::new(settings.clone(), intake, status);
            outboxes.spawn(async move { source.run().await });
        }
        for settings in &config.message_sources {
            let intake = Arc::new(BrokerIntake::new(Arc::clone(broker), settings.target()));
            if let Some(create) = settings.create() {
                let checked = intake.check_create(create, settings.namespace());
                checked.map_err(|problem| {
                    let (name, problem) = (settings.name(), problem.detail().to_owned());
                    let problem = format!("`create` of {name}: {problem}");
                    ConfigError::Value { key: "sources", problem }
                })?;
            }
            let status = status(settings.name(), settings.namespace());
            let reader = MessageReader::new(settings, &reader, intake, status);
            let stop = stop.subscribe();
            readers.spawn(async move { reader.run(stop).await });
        }
        // Set once, because a broker starts once.
        let _ = broker.sources.set(statuses);
        Ok(Self { _outboxes: outboxes, readers, stop })
    }

    /// Stops taking messages, and waits until those that were taken are confirmed or given back.
    pub(crate) async fn finish(&mut self) {
        self.stop.send_replace(true);
        while self.readers.join_next().await.is_some() {}
    }
}

/// Counts what happens to connections and sources.
pub(crate) fn observer(telemetry: &Telemetry, clock: &Arc<SystemClock>) -> Observer {
    let (telemetry, clock) = (telemetry.clone(), Arc::clone(clock));
    Arc::new(move |event| telemetry.connector(&event, clock.now()))
}

/// The name of this broker among the readers of a source: the same when it starts again.
fn reader_name(port: u16) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    format!("{host}-{port}")
}
