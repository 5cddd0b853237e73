//! Metrics and logs of a broker. This file and `shared` are the only ones that name metrics.
//!
//! [`Telemetry`] has one method per event; [`Telemetry::page`] is what Prometheus scrapes. No label
//! has a value that a caller can choose, so the number of series is bounded; that is why there is
//! no label for namespaces. Payloads, header values and secrets are never logged.

mod connectors;
mod shared;

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Method, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use punctual_connectors::ConnectorEvent;
use punctual_core::{Epoch, Namespace, Outcome, PartitionId, Timestamp, zones_version};
use punctual_engine::{Delivery, Gauges};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::clock::Offset;
use crate::measures::lag::has_lag;
use crate::measures::series::{LAG_BOUNDS_MS, SeriesTable};
use crate::measures::windows::AttemptWindows;
use connectors::ConnectorMetrics;
use shared::SharedMetrics;
pub(crate) use shared::{Forwarded, StoreCall};

/// Buckets of the duration of a commit in seconds: from a fast disk to a broken one.
const COMMIT_SECONDS_BOUNDS: [f64; 11] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Buckets of the changes in a commit.
const COMMIT_TASKS_BOUNDS: [f64; 9] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0];

/// The content type of the metrics page.
pub(crate) const PAGE_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text, for people.
    Pretty,
    /// One JSON object per line, for programs.
    Json,
}

/// Starts logging to standard error. `RUST_LOG` sets the levels, for example
/// `info,punctual_engine=debug`; the default is `info`.
pub fn start_log(format: LogFormat) {
    let wanted = std::env::var("RUST_LOG").ok().and_then(|levels| levels.parse().ok());
    // lapin logs messages that no queue took with their body, as a warning.
    let usual = Targets::new().with_default(LevelFilter::INFO);
    let usual = usual.with_target("lapin", LevelFilter::ERROR);
    // Clients note every session; what matters of it is an event of the connection.
    let usual = usual.with_target("krafka", LevelFilter::WARN);
    let usual = usual.with_target("async_nats", LevelFilter::WARN);
    let filter = wanted.unwrap_or(usual);
    let (log, registry) = (tracing_subscriber::fmt::layer(), tracing_subscriber::registry());
    let (log, registry) = (log.with_writer(stderr), registry.with(filter));
    match format {
        LogFormat::Pretty => registry.with(log.with_ansi(stderr().is_terminal())).init(),
        LogFormat::Json => registry.with(log.json()).init(),
    }
}

/// The metrics of a broker. Clones share them.
#[derive(Clone)]
pub(crate) struct Telemetry(Arc<Metrics>);

struct Metrics {
    registry: Registry,
    lag: Histogram,
    attempts: Family<AttemptLabels, Counter>,
    mails: Family<AttemptLabels, Counter>,
    early: Counter,
    requests: Family<RequestLabels, Counter>,
    connections: Gauge,
    webhook_connections: Gauge,
    webhook_connection_waits: Gauge,
    webhook_lookup_waits: Gauge,
    certificates: Family<CertificateLabels, Counter>,
    commit_tasks: Histogram,
    commit_seconds: Histogram,
    owner_panics: Counter,
    windows: AttemptWindows,
    series: SeriesTable,
    alarms: Gauge,
    alarms_raised: Gauge,
    alarm_notices: Counter,
    clock_suspect: Gauge,
    clock_offset_seconds: Gauge<f64, AtomicU64>,
    gauges: Arc<LatestGauges>,
    /// Metrics of brokers that share a store.
    shared: SharedMetrics,
    connectors: ConnectorMetrics,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    outcome: OutcomeLabel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "variants are the label values")]
enum OutcomeLabel {
    acked,
    failed,
    refused,
    expired,
}

impl AttemptLabels {
    const fn of(outcome: &Outcome) -> Self {
        let outcome = match outcome {
            Outcome::Acked => OutcomeLabel::acked,
            Outcome::Failed { .. } => OutcomeLabel::failed,
            Outcome::Refused { .. } => OutcomeLabel::refused,
            Outcome::Expired => OutcomeLabel::expired,
        };
        Self { outcome }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    result: CertificateLabel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "variants are the label values")]
enum CertificateLabel {
    used,
    failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: u16,
}

impl Telemetry {
    pub(crate) fn new() -> Self {
        let gauges = Arc::new(LatestGauges::default());
        let mut registry = Registry::with_prefix("punctual");
        let build =
            Info::new([("version", env!("CARGO_PKG_VERSION")), ("timezone_data", zones_version())]);
        registry.register(
            "build",
            "Version of Punctual and release of the time zone database",
            build,
        );
        let mut metrics = Metrics {
            lag: Histogram::new(LAG_BOUNDS_MS.map(|bound| f64::from(bound) / 1000.0)),
            attempts: Family::default(),
            mails: Family::default(),
            early: Counter::default(),
            requests: Family::default(),
            connections: Gauge::default(),
            webhook_connections: Gauge::default(),
            webhook_connection_waits: Gauge::default(),
            webhook_lookup_waits: Gauge::default(),
            certificates: Family::default(),
            commit_tasks: Histogram::new(COMMIT_TASKS_BOUNDS),
            commit_seconds: Histogram::new(COMMIT_SECONDS_BOUNDS),
            owner_panics: Counter::default(),
            windows: AttemptWindows::default(),
            series: SeriesTable::new(),
            alarms: Gauge::default(),
            alarms_raised: Gauge::default(),
            alarm_notices: Counter::default(),
            clock_suspect: Gauge::default(),
            clock_offset_seconds: Gauge::default(),
            gauges: Arc::clone(&gauges),
            shared: SharedMetrics::register(&mut registry),
            connectors: ConnectorMetrics::register(&mut registry),
            registry,
        };
        let m = &mut metrics;
        let lag = "How much later than due the first attempt of a fire was sent, in seconds; \
                   manual fires do not count";
        m.registry.register("lag_seconds", lag, m.lag.clone());
        let attempts = "Delivery attempts that have ended, by outcome";
        m.registry.register("attempts", attempts, m.attempts.clone());
        let mails = "Attempts to send a mail that have ended, by outcome";
        m.registry.register("mails", mails, m.mails.clone());
        let early = "Attempts that were sent before they were due; every one is a bug";
        m.registry.register("early", early, m.early.clone());
        let requests = "HTTP requests that were answered, by method, route and status";
        m.registry.register("requests", requests, m.requests.clone());
        m.registry.register(
            "connections",
            "Open connections of callers to this broker",
            m.connections.clone(),
        );
        let open = "Open connections to webhook receivers, in use or idle";
        m.registry.register("webhook_connections", open, m.webhook_connections.clone());
        let waits = "Webhook deliveries that wait for a connection because the limit is reached";
        m.registry.register("webhook_connection_waits", waits, m.webhook_connection_waits.clone());
        let waits =
            "Webhook deliveries that wait to look a host name up because the limit is reached";
        m.registry.register("webhook_lookup_waits", waits, m.webhook_lookup_waits.clone());
        let certificates =
            "Changes of the TLS certificate files, by whether the new certificate is used";
        m.registry.register("tls_certificates", certificates, m.certificates.clone());
        let tasks = "Task changes in one commit of the store";
        m.registry.register("commit_tasks", tasks, m.commit_tasks.clone());
        let seconds = "Duration of a commit of the store, in seconds";
        m.registry.register("commit_seconds", seconds, m.commit_seconds.clone());
        let panics = "Owners of partitions that ended by a panic, which is a bug";
        m.registry.register("owner_panics", panics, m.owner_panics.clone());
        let alarms = "Alarms that this broker evaluates";
        m.registry.register("alarms", alarms, m.alarms.clone());
        let raised = "Alarms that this broker evaluates and that are raised";
        m.registry.register("alarms_raised", raised, m.alarms_raised.clone());
        let notices = "Notices of alarms that this broker has scheduled";
        m.registry.register("alarm_notices", notices, m.alarm_notices.clone());
        let suspect = "1 if the machine's clock was set and is not followed, else 0";
        m.registry.register("clock_suspect", suspect, m.clock_suspect.clone());
        let offset = "How far the machine's clock is ahead of this broker's time, in seconds";
        m.registry.register("clock_offset_seconds", offset, m.clock_offset_seconds.clone());
        m.registry.register_collector(Box::new(gauges));
        Self(Arc::new(metrics))
    }

    /// An attempt has ended. Only first attempts of fires that the schedule or a touch made due
    /// count for the lag: a retry or a redrive is late on purpose, and a manual fire has no due
    /// time of its own.
    pub(crate) fn attempt(&self, delivery: &Delivery, outcome: &Outcome, now: Timestamp) {
        self.0.windows.record(delivery, outcome, now);
        self.0.series.record(delivery, outcome, now);
        let Delivery { fire_at, fired_at, .. } = *delivery;
        if has_lag(delivery) {
            self.0.lag.observe(fired_at.since(fire_at).as_secs_f64());
        }
        if fired_at < fire_at {
            self.0.early.inc();
        }
        self.0.attempts.get_or_create(&AttemptLabels::of(outcome)).inc();
    }

    /// Something happened to a connection or a source.
    pub(crate) fn connector(&self, event: &ConnectorEvent<'_>, now: Timestamp) {
        let metrics = &self.0.connectors;
        match *event {
            ConnectorEvent::Attempt(connection, delivery, outcome) => {
                metrics.delivery(connection.as_str(), outcome);
                self.attempt(delivery, outcome, now);
            }
            ConnectorEvent::State(connection, state) => metrics.state(connection.as_str(), state),
            ConnectorEvent::Taken { source, applied, rejected, lag } => {
                metrics.rows(source, applied, rejected, lag);
            }
        }
    }

    /// An attempt to send a mail has ended.
    pub(crate) fn mail(&self, outcome: &Outcome) {
        self.0.mails.get_or_create(&AttemptLabels::of(outcome)).inc();
    }

    /// A fire has become a dead letter.
    pub(crate) fn dead_letter(&self, namespace: &Namespace, now: Timestamp) {
        self.0.windows.record_dead(namespace, now);
        self.0.series.record_dead(namespace, now);
    }

    /// What ended in each minute, by namespace.
    pub(crate) fn series(&self) -> &SeriesTable {
        &self.0.series
    }

    /// What attempts came to lately, for alarms and live streams.
    pub(crate) fn windows(&self) -> &AttemptWindows {
        &self.0.windows
    }

    /// Sets how many alarms this broker evaluates, and how many of them are raised.
    pub(crate) fn alarms(&self, alarms: usize, raised: usize) {
        self.0.alarms.set(i64::try_from(alarms).unwrap_or(i64::MAX));
        self.0.alarms_raised.set(i64::try_from(raised).unwrap_or(i64::MAX));
    }

    /// The notice of an alarm was scheduled.
    pub(crate) fn alarm_notice(&self) {
        self.0.alarm_notices.inc();
    }

    /// A request was answered. `route` is the pattern that it matched, never its path.
    pub(crate) fn request(&self, method: &Method, route: Option<&str>, status: StatusCode) {
        let labels = RequestLabels {
            method: method_label(method),
            route: route.unwrap_or("none").to_owned(),
            status: status.as_u16(),
        };
        self.0.requests.get_or_create(&labels).inc();
    }

    /// A caller connected. The connection counts until the guard is dropped.
    pub(crate) fn connection(&self) -> OpenConnection {
        self.0.connections.inc();
        OpenConnection(self.clone())
    }

    /// Adds to the open connections to webhook receivers.
    pub(crate) fn webhook_connection(&self, change: i64) {
        self.0.webhook_connections.inc_by(change);
    }

    /// Returns how many connections to webhook receivers are open, and how many deliveries wait for
    /// one.
    pub(crate) fn connections_now(&self) -> (u64, u64) {
        let count = |gauge: &Gauge| u64::try_from(gauge.get()).unwrap_or_default();
        (count(&self.0.webhook_connections), count(&self.0.webhook_connection_waits))
    }

    /// A webhook delivery waits for a connection. It counts until the guard is dropped.
    pub(crate) fn webhook_connection_waits(&self) -> CountedWait {
        CountedWait::new(&self.0.webhook_connection_waits)
    }

    /// A webhook delivery waits to look a host name up. It counts until the guard is dropped.
    pub(crate) fn webhook_lookup_waits(&self) -> CountedWait {
        CountedWait::new(&self.0.webhook_lookup_waits)
    }

    /// The TLS certificate files have changed.
    pub(crate) fn certificate(&self, is_used: bool) {
        let result = if is_used { CertificateLabel::used } else { CertificateLabel::failed };
        self.0.certificates.get_or_create(&CertificateLabels { result }).inc();
    }

    /// The store has committed a batch.
    pub(crate) fn commit(&self, tasks: usize, took: Duration) {
        let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
        self.0.commit_tasks.observe(f64::from(tasks));
        self.0.commit_seconds.observe(took.as_secs_f64());
    }

    /// The machine's clock was compared with the broker's time.
    pub(crate) fn clock(&self, offset: Offset, is_suspect: bool) {
        self.0.clock_suspect.set(i64::from(is_suspect));
        self.0.clock_offset_seconds.set(offset.as_seconds());
    }

    /// This broker owns a partition under this epoch, or no longer owns it.
    pub(crate) fn holds(&self, partition: PartitionId, epoch: Option<Epoch>) {
        self.0.shared.holds(partition, epoch);
    }

    /// An owner of this broker has panicked.
    pub(crate) fn owner_panicked(&self) {
        self.0.owner_panics.inc();
    }

    /// Sets whether this broker is the leader.
    pub(crate) fn leads(&self, leads: bool) {
        self.0.shared.leader.set(i64::from(leads));
    }

    /// Sets how many brokers share the store.
    pub(crate) fn brokers(&self, count: usize) {
        self.0.shared.brokers.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The store refused a write of an old epoch.
    pub(crate) fn stale_write(&self) {
        self.0.shared.stale.inc();
    }

    /// A partition was handed over, and had no owner for this long.
    pub(crate) fn handed_over(&self, took: Duration) {
        self.0.shared.hand_over_seconds.observe(took.as_secs_f64());
    }

    /// Sets by how much this broker's clock is ahead of the others; `None` if they agree.
    pub(crate) fn skew(&self, ahead_ms: Option<i64>) {
        #[expect(clippy::cast_precision_loss, reason = "no clock is off by 2^53 ms")]
        self.0.shared.skew_seconds.set(ahead_ms.unwrap_or(0) as f64 / 1000.0);
    }

    /// A call was forwarded to the broker that owns its partition.
    pub(crate) fn forwarded(&self, result: Forwarded) {
        self.0.shared.forwarded(result);
    }

    /// A shared store has answered a call.
    pub(crate) fn store_call(&self, call: StoreCall, took: Duration) {
        self.0.shared.store_call(call, took);
    }

    /// Sets how often a shared store has lost acknowledged writes so far.
    pub(crate) fn rewound(&self, times: u64) {
        let counted = self.0.shared.rewound.get();
        self.0.shared.rewound.inc_by(times.saturating_sub(counted));
    }

    /// Sets how many values of a shared store were found damaged so far.
    pub(crate) fn damaged(&self, values: u64) {
        let counted = self.0.shared.damaged.get();
        self.0.shared.damaged.inc_by(values.saturating_sub(counted));
    }

    /// Returns the metrics page. Without `gauges` the metrics of owners are left out.
    pub(crate) fn page(&self, gauges: Option<Gauges>, now: Timestamp) -> String {
        let latest = gauges.map(|gauges| (gauges, now));
        *self.0.gauges.0.lock().unwrap_or_else(PoisonError::into_inner) = latest;
        let mut page = String::new();
        encode(&mut page, &self.0.registry).expect("writing to a string never fails");
        page
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

/// Counts an open connection until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(Telemetry);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.connections.dec();
    }
}

/// Counts a delivery that waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedWait(Gauge);

impl CountedWait {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for CountedWait {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The gauges of the owners at the last scrape.
#[derive(Debug, Default)]
struct LatestGauges(Mutex<Option<(Gauges, Timestamp)>>);

impl Collector for LatestGauges {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some((gauges, now)) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) else {
            return Ok(());
        };
        // The registry ends its help texts with a full stop; here they need one.
        let mut gauge = |name, help, value: f64| {
            let gauge = ConstGauge::new(value);
            let metric =
                encoder.encode_descriptor(name, help, None, EncodeMetric::metric_type(&gauge))?;
            EncodeMetric::encode(&gauge, metric)
        };
        #[expect(clippy::cast_precision_loss, reason = "a count beyond 2^53 may be rounded")]
        for (name, help, value) in [
            ("loaded_tasks", "Tasks that are loaded into memory.", gauges.loaded),
            ("backlog", "Fires that are due and wait to be sent.", gauges.queued),
            ("inflight", "Deliveries that were sent and have no outcome yet.", gauges.in_flight),
            ("parked_lanes", "Lanes with due tasks that no worker takes.", gauges.parked_lanes),
        ] {
            gauge(name, help, value as f64)?;
        }
        let overdue = "How long the oldest fire that was not sent yet is overdue, in seconds.";
        let oldest = gauges.oldest_overdue.map_or(Duration::ZERO, |oldest| now.since(oldest));
        gauge("oldest_overdue_seconds", overdue, oldest.as_secs_f64())?;
        // Owners count these since their start, so this is a counter.
        let help = "Fires of cron and interval tasks that were skipped, by reason.";
        let mut skips =
            encoder.encode_descriptor("fires_skipped", help, None, MetricType::Counter)?;
        for (reason, count) in [
            ("misfire", gauges.skips.misfire),
            ("overlap", gauges.skips.overlap),
            ("paused", gauges.skips.paused),
        ] {
            let counter = ConstCounter::new(count);
            EncodeMetric::encode(&counter, skips.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{
        AttemptNo, Due, Namespace, NewTask, Occasion, Queue, Reason, Schedule, Target, Task,
        TaskId, Version,
    };
    use punctual_engine::Skips;

    use super::*;

    /// The first attempt of a fire that is due at `fire_at` and was sent at `fired_at`.
    fn delivery(fire_at: u64, fired_at: u64) -> Delivery {
        let [fire_at, fired_at] = [fire_at, fired_at].map(Timestamp::from_millis);
        let target = Target::Queue(Queue::new("orders").unwrap());
        let schedule = Schedule::Once(Due::At(fire_at));
        let new_task = NewTask::new(Namespace::new("shop").unwrap(), schedule, target);
        let id = TaskId::floor(fire_at);
        let task = Task::new(id, new_task.into(), fire_at, Version::FIRST);
        Delivery::of(&task, fired_at)
    }

    #[test]
    fn the_page_has_every_metric() {
        let telemetry = Telemetry::new();
        telemetry.attempt(&delivery(1000, 1004), &Outcome::Acked, Timestamp::EPOCH);
        let failed = Outcome::Failed { reason: Reason::new("no"), retry_in: None };
        let mut second = delivery(1000, 9000);
        second.attempt = AttemptNo::new(2);
        telemetry.attempt(&second, &failed, Timestamp::EPOCH);
        telemetry.request(&Method::PUT, Some("/v1/{namespace}/tasks/{key}"), StatusCode::CREATED);
        telemetry.request(&"BREW".parse().unwrap(), None, StatusCode::NOT_FOUND);
        let connected = telemetry.connection();
        telemetry.webhook_connection(1);
        let waits = telemetry.webhook_connection_waits();
        telemetry.certificate(true);
        telemetry.certificate(false);
        let partition = |number| PartitionId::new(number).unwrap();
        telemetry.holds(partition(3), Epoch::new(7));
        telemetry.holds(partition(3), Epoch::new(8));
        telemetry.holds(partition(4), Epoch::new(1));
        telemetry.holds(partition(4), None);
        telemetry.leads(true);
        telemetry.brokers(3);
        telemetry.stale_write();
        telemetry.owner_panicked();
        telemetry.handed_over(Duration::from_millis(4));
        telemetry.skew(Some(-300));
        telemetry.forwarded(Forwarded::answered);
        telemetry.store_call(StoreCall::load, Duration::from_millis(1));
        telemetry.rewound(1);
        telemetry.rewound(2);
        telemetry.damaged(1);
        telemetry.damaged(3);
        let gauges = Gauges {
            loaded: 5,
            queued: 4,
            in_flight: 3,
            claimed: 0,
            claimed_unsent: 0,
            claimed_overlapping: 0,
            firing: 0,
            lanes: 9,
            parked_lanes: 2,
            oldest_overdue: Some(Timestamp::from_millis(8500)),
            unread_since: None,
            skips: Skips { misfire: 7, overlap: 0, paused: 1 },
        };
        let page = telemetry.page(Some(gauges), Timestamp::from_millis(10_000));
        for line in [
            "punctual_lag_seconds_count 1",
            "punctual_lag_seconds_bucket{le=\"0.005\"} 1",
            "punctual_lag_seconds_bucket{le=\"0.002\"} 0",
            "punctual_attempts_total{outcome=\"acked\"} 1",
            "punctual_attempts_total{outcome=\"failed\"} 1",
            "punctual_early_total 0",
            "punctual_requests_total{method=\"PUT\",route=\"/v1/{namespace}/tasks/{key}\",\
             status=\"201\"} 1",
            "punctual_requests_total{method=\"other\",route=\"none\",status=\"404\"} 1",
            "punctual_connections 1",
            "punctual_webhook_connections 1",
            "punctual_webhook_connection_waits 1",
            "punctual_tls_certificates_total{result=\"used\"} 1",
            "punctual_tls_certificates_total{result=\"failed\"} 1",
            "punctual_commit_tasks_count 0",
            "punctual_commit_seconds_count 0",
            "punctual_clock_suspect 0",
            "punctual_clock_offset_seconds 0.0",
            "punctual_loaded_tasks 5.0",
            "punctual_backlog 4.0",
            "punctual_inflight 3.0",
            "punctual_parked_lanes 2.0",
            "punctual_oldest_overdue_seconds 1.5",
            "punctual_fires_skipped_total{reason=\"misfire\"} 7",
            "punctual_fires_skipped_total{reason=\"overlap\"} 0",
            "punctual_fires_skipped_total{reason=\"paused\"} 1",
            "punctual_partition_epoch{partition=\"3\"} 8",
            "punctual_partitions_held 1",
            "punctual_owner_panics_total 1",
            "punctual_leader 1",
            "punctual_brokers 3",
            "punctual_stale_epoch_rejected_total 1",
            "punctual_hand_over_seconds_count 1",
            "punctual_clock_skew_seconds -0.3",
            "punctual_forwarded_total{result=\"answered\"} 1",
            "punctual_store_call_seconds_count{call=\"load\"} 1",
            "punctual_store_rewound_total 2",
            "punctual_store_damaged_values_total 3",
            "# EOF",
        ] {
            assert!(page.lines().any(|got| got == line), "{line}\n{page}");
        }
        assert!(page.contains("punctual_build_info{version=\""), "{page}");
        assert!(page.contains("timezone_data=\"20"), "{page}");
        drop((connected, waits));
        let page = telemetry.page(None, Timestamp::EPOCH);
        assert!(page.contains("punctual_connections 0"), "{page}");
        assert!(page.contains("punctual_webhook_connection_waits 0"), "{page}");
        assert!(!page.contains("punctual_backlog"), "{page}");
    }

    #[test]
    fn only_first_attempts_of_scheduled_fires_count_for_the_lag() {
        for (occasion, attempt, count) in [
            (Occasion::Due, AttemptNo::FIRST, 1),
            (Occasion::Return, AttemptNo::FIRST, 1),
            (Occasion::Manual, AttemptNo::FIRST, 0),
            (Occasion::Due, AttemptNo::new(2), 0),
        ] {
            let telemetry = Telemetry::new();
            let mut delivery = delivery(1000, 5000);
            (delivery.occasion, delivery.attempt) = (occasion, attempt);
            telemetry.attempt(&delivery, &Outcome::Acked, Timestamp::EPOCH);
            let page = telemetry.page(None, Timestamp::EPOCH);
            let line = format!("punctual_lag_seconds_count {count}");
            assert!(page.lines().any(|got| got == line), "{occasion:?} {attempt:?}\n{page}");
            assert!(page.contains("punctual_attempts_total{outcome=\"acked\"} 1"), "{page}");
        }
    }

    #[test]
    fn an_early_attempt_is_counted() {
        let telemetry = Telemetry::new();
        telemetry.attempt(&delivery(1000, 999), &Outcome::Acked, Timestamp::EPOCH);
        assert!(telemetry.page(None, Timestamp::EPOCH).contains("punctual_early_total 1"));
    }
}
