//! What the tests of single kinds of systems share: connections as they are written, deliveries and
//! their results.

use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    AttemptResult, ConnectionName, Due, Guarantee, MessageAddress, MessageOptions, MessageSystem,
    Namespace, NewTask, Outcome, Payload, Schedule, SinkAddress, SinkTarget, Target, Task, TaskId,
    TaskKey, Timestamp, Version,
};
use punctual_engine::Delivery;

use crate::connection::Connection;
use crate::connection_settings::connection;

/// Returns a connection of the configuration.
pub(crate) fn connection_of(toml: &str) -> Connection {
    connection("mq", "connections.mq", &toml::from_str(toml).unwrap()).unwrap()
}

/// What a test says about a delivery.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) system: MessageSystem,
    pub(crate) place: String,
    pub(crate) options: MessageOptions,
    pub(crate) key: Option<String>,
    pub(crate) payload: String,
    pub(crate) guarantee: Guarantee,
    pub(crate) timeout: Duration,
}

impl Wanted {
    pub(crate) fn to(system: MessageSystem, place: &str) -> Self {
        Self {
            system,
            place: place.to_owned(),
            options: MessageOptions::default(),
            key: None,
            payload: "{\"order\":42}".to_owned(),
            guarantee: Guarantee::AtLeastOnce,
            timeout: Duration::from_secs(10),
        }
    }

    pub(crate) fn key(self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self }
    }

    pub(crate) fn payload(self, payload: &str) -> Self {
        Self { payload: payload.to_owned(), ..self }
    }

    pub(crate) fn guarantee(self, guarantee: Guarantee) -> Self {
        Self { guarantee, ..self }
    }

    pub(crate) fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the delivery of the fire with this number, whose permit is taken.
    pub(crate) fn delivery(&self, number: u64) -> Delivery {
        let options = self.options.clone();
        let address = MessageAddress::new(self.system, &self.place, options).unwrap();
        let connection = ConnectionName::new("mq").unwrap();
        let target = SinkTarget { connection, address: SinkAddress::Message(address) };
        let due = Timestamp::from_millis(1_700_000_000_000 + number);
        let namespace = Namespace::new("shop").unwrap();
        let mut new =
            NewTask::new(namespace, Schedule::Once(Due::At(due)), Target::Sink(Box::new(target)));
        new.key = self.key.as_ref().map(|key| TaskKey::new(key).unwrap());
        new.payload = Payload::Json(Bytes::from(self.payload.clone()));
        new.guarantee = self.guarantee;
        new.timeout = self.timeout;
        let task = Task::new(TaskId::floor(due), new.into(), due, Version::FIRST);
        let mut delivery = Delivery::of(&task, due);
        delivery.send(due).unwrap();
        delivery
    }
}

/// Returns results in a form that tests compare: the outcome and what the other side said.
pub(crate) fn shown(results: &[Option<AttemptResult>]) -> Vec<String> {
    let outcome = |result: &AttemptResult| match &result.outcome {
        Outcome::Acked => {
            let answer = result.answer.as_ref().map(|answer| answer.body().to_vec());
            format!("acked: {}", String::from_utf8(answer.unwrap_or_default()).unwrap())
        }
        Outcome::Failed { reason, .. } => format!("failed: {}", reason.as_str()),
        Outcome::Refused { reason } => format!("refused: {}", reason.as_str()),
        Outcome::Expired => "expired".to_owned(),
    };
    let show = |result: &Option<AttemptResult>| {
        result.as_ref().map_or_else(|| "not sent".to_owned(), outcome)
    };
    results.iter().map(show).collect()
}
