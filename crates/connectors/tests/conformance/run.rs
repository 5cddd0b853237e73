//! The real courier with connections of a configuration, and deliveries without an engine.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_connectors::{ConnectionSettings, ConnectionView, ConnectorConfig, SinkCourier};
use punctual_core::{
    Clock, ConnectionName, Due, Epoch, Guarantee, MessageAddress, Namespace, NewTask, Outcome,
    PartitionId, Payload, Schedule, Sequence, SinkAddress, SinkTarget, Target, Task, TaskId,
    TaskKey, Timestamp, Version,
};
use punctual_engine::{CollectedReports, ConnectionState, Courier as _, Delivery, Reports};
use punctual_test_support::{WAIT_MAX, now_millis, wait_for};
use serde::Deserialize;
use tokio::runtime::Runtime;

/// The connection that most cases use.
pub(crate) const CONNECTION: &str = "mq";

#[derive(Debug)]
struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(u64::try_from(now_millis()).unwrap())
    }

    fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }
}

#[derive(Deserialize)]
struct ConfigFile {
    connections: BTreeMap<String, ConnectionSettings>,
}

/// A courier that carries deliveries.
pub(crate) struct CourierRun {
    runtime: Option<Runtime>,
    courier: Arc<SinkCourier>,
    reports: Reports,
    received: CollectedReports,
    carried: u64,
}

/// What came of deliveries, by fire id; `None`: not sent.
pub(crate) type Outcomes = HashMap<String, Option<Outcome>>;

impl CourierRun {
    /// Starts a courier with one connection: the lines of its table.
    pub(crate) fn start(settings: &str) -> Self {
        Self::start_all(&[(CONNECTION, settings)])
    }

    pub(crate) fn start_all(connections: &[(&str, &str)]) -> Self {
        let table = |(name, settings): &(&str, &str)| {
            format!("[connections.{name}]\nnamespaces = [\"*\"]\n{settings}\n")
        };
        let text: String = connections.iter().map(table).collect();
        let file: ConfigFile = toml::from_str(&text).unwrap();
        let config = ConnectorConfig::read(&file.connections, &[]).unwrap();
        let runtime = Runtime::new().unwrap();
        let guard = runtime.enter();
        let observer = Arc::new(|_: punctual_connectors::ConnectorEvent<'_>| ());
        let courier = SinkCourier::start(config.connections, 1024, Arc::new(RealClock), observer);
        drop(guard);
        let (reports, received) = Reports::collected();
        Self { runtime: Some(runtime), courier, reports, received, carried: 0 }
    }

    /// A delivery that is due now. Its body has its number, padded to a size.
    pub(crate) fn delivery(&mut self, address: &MessageAddress, bytes: usize) -> Delivery {
        self.delivery_over(CONNECTION, address, bytes)
    }

    pub(crate) fn delivery_over(
        &mut self,
        connection: &str,
        address: &MessageAddress,
        bytes: usize,
    ) -> Delivery {
        self.carried += 1;
        let number = self.carried;
        let body = format!("{{\"number\":{number},\"padding\":\"{}\"}}", "x".repeat(bytes));
        self.make(connection, address, body, Guarantee::AtLeastOnce)
    }

    pub(crate) fn delivery_at_most_once(&mut self, address: &MessageAddress) -> Delivery {
        self.carried += 1;
        self.make(CONNECTION, address, "{}".to_owned(), Guarantee::AtMostOnce)
    }

    fn make(
        &self,
        connection: &str,
        address: &MessageAddress,
        body: String,
        guarantee: Guarantee,
    ) -> Delivery {
        let connection = ConnectionName::new(connection).unwrap();
        let target = SinkTarget { connection, address: SinkAddress::Message(address.clone()) };
        let due = RealClock.now();
        let schedule = Schedule::Once(Due::At(due));
        let namespace = Namespace::new("shop").unwrap();
        let mut new = NewTask::new(namespace, schedule, Target::Sink(Box::new(target)));
        new.key = Some(TaskKey::new(&format!("key-{}", self.carried)).unwrap());
        new.payload = Payload::Json(Bytes::from(body));
        new.guarantee = guarantee;
        new.timeout = Duration::from_secs(10);
        let id =
            TaskId::new(due, PartitionId::FIRST, Epoch::NONE, Sequence::new(self.carried).unwrap());
        Delivery::of(&Task::new(id, new.into(), due, Version::FIRST), due)
    }

    /// The same fire again, as another attempt.
    pub(crate) fn again(delivery: &Delivery) -> Delivery {
        let definition = Arc::clone(&delivery.definition);
        let task = Task::new(delivery.fire_id.task, definition, delivery.fire_at, Version::FIRST);
        Delivery::of(&task, delivery.fire_at)
    }

    pub(crate) fn carry(&self, deliveries: Vec<Delivery>) {
        let _guard = self.runtime.as_ref().unwrap().enter();
        self.courier.carry(deliveries, &self.reports);
    }

    /// Waits for the reports of some deliveries.
    pub(crate) fn outcomes(&self, count: usize) -> Outcomes {
        let mut outcomes = Outcomes::new();
        while outcomes.len() < count {
            for (id, outcome) in self.next_outcomes() {
                let before = outcomes.insert(id.clone(), outcome);
                assert!(before.is_none(), "two reports for {id}");
            }
        }
        outcomes
    }

    /// Waits for the next reports.
    pub(crate) fn next_outcomes(&self) -> Outcomes {
        let reports = self.received.next(WAIT_MAX);
        assert!(!reports.is_empty(), "there are no more reports");
        reports.into_iter().map(|report| (report.fire_id.to_string(), report.outcome)).collect()
    }

    /// Carries deliveries and waits for their reports.
    pub(crate) fn settle(&self, deliveries: Vec<Delivery>) -> Outcomes {
        let count = deliveries.len();
        self.carry(deliveries);
        self.outcomes(count)
    }

    /// Carries deliveries until all are confirmed, as an owner does with its retries.
    pub(crate) fn settle_all(&self, mut deliveries: Vec<Delivery>) {
        for _ in 0..50 {
            let copies = deliveries.iter().map(Self::again).collect();
            let outcomes = self.settle(copies);
            deliveries.retain(|delivery| !is_acked(&outcomes, delivery));
            if deliveries.is_empty() {
                return;
            }
        }
        panic!("{} deliveries are never confirmed", deliveries.len());
    }

    pub(crate) fn view(&self, connection: &str) -> ConnectionView {
        let views = self.courier.views();
        views.into_iter().find(|view| view.name.as_str() == connection).unwrap()
    }

    pub(crate) fn wait_until_ready(&self) {
        wait_for("the connection", || self.view(CONNECTION).state == ConnectionState::Ready);
    }

    /// Opens a session, as `punctual connections --test` does.
    pub(crate) fn test(&self) -> Result<(), String> {
        let runtime = self.runtime.as_ref().unwrap();
        runtime.block_on(self.courier.test(&ConnectionName::new(CONNECTION).unwrap())).unwrap()
    }

    pub(crate) fn courier(&self) -> &SinkCourier {
        &self.courier
    }
}

impl Drop for CourierRun {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

pub(crate) fn is_acked(outcomes: &Outcomes, delivery: &Delivery) -> bool {
    outcomes[&delivery.fire_id.to_string()] == Some(Outcome::Acked)
}
