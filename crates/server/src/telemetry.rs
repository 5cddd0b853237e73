//! What a broker tells about itself: logs and metrics. The one file that spells the names of metrics.
//!
//! In: what happened, through the typed methods of [`Telemetry`]. Out: lines on standard error, and a page of `OpenMetrics` text.
//! Bound: no label takes a value that a caller can choose; a namespace is none, because there may be any number of them.
//! Payloads, header values and secrets are never among what is told.

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
use punctual_core::{AttemptNo, Epoch, Outcome, PartitionId, Timestamp, zones_version};
use punctual_engine::Gauges;
use tracing_subscriber::EnvFilter;

use crate::clock::Offset;
use shared::SharedMetrics;
pub(crate) use shared::{Forwarded, StoreCall};

/// Bounds of lag in seconds: from the resolution of our clock to what nobody calls on time any more.
const LAG_BOUNDS: [f64; 17] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
    3600.0,
];
/// Bounds of a commit in seconds: a fast disk to a broken one.
const COMMIT_SECONDS_BOUNDS: [f64; 11] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Bounds of a commit in tasks.
const COMMIT_TASKS_BOUNDS: [f64; 9] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0];

/// What a page of metrics is, in the language of HTTP.
pub(crate) const PAGE_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// For machines, one object a line.
    Json,
}

/// Sends logs to standard error from here on. `RUST_LOG` chooses how much; `info` unless it says.
pub fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match format {
        LogFormat::Pretty => log.with_ansi(stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// Counts what happens. Clones count together.
#[derive(Clone)]
pub(crate) struct Telemetry(Arc<Metrics>);

struct Metrics {
    registry: Registry,
    lag: Histogram,
    attempts: Family<AttemptLabels, Counter>,
    early: Counter,
    requests: Family<RequestLabels, Counter>,
    connections: Gauge,
    webhook_connections: Gauge,
    webhook_waits: Gauge,
    certificates: Family<CertificateLabels, Counter>,
    commit_tasks: Histogram,
    commit_seconds: Histogram,
    clock_suspect: Gauge,
    clock_offset_seconds: Gauge<f64, AtomicU64>,
    gauges: Arc<Latest>,
    /// Of brokers that share a store.
    shared: SharedMetrics,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    outcome: OutcomeLabel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "this is how they are spelled on the page")]
enum OutcomeLabel {
    acked,
    failed,
    refused,
    expired,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    result: CertificateLabel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "this is how they are spelled on the page")]
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
        let gauges = Arc::new(Latest::default());
        let mut registry = Registry::with_prefix("punctual");
        let build =
            Info::new([("version", env!("CARGO_PKG_VERSION")), ("timezone_data", zones_version())]);
        registry.register("build", "Which Punctual this is", build);
        let mut metrics = Metrics {
            lag: Histogram::new(LAG_BOUNDS),
            attempts: Family::default(),
            early: Counter::default(),
            requests: Family::default(),
            connections: Gauge::default(),
            webhook_connections: Gauge::default(),
            webhook_waits: Gauge::default(),
            certificates: Family::default(),
            commit_tasks: Histogram::new(COMMIT_TASKS_BOUNDS),
            commit_seconds: Histogram::new(COMMIT_SECONDS_BOUNDS),
            clock_suspect: Gauge::default(),
            clock_offset_seconds: Gauge::default(),
            gauges: Arc::clone(&gauges),
            shared: SharedMetrics::register(&mut registry),
            registry,
        };
        let m = &mut metrics;
        let lag = "How late first attempts were sent";
        m.registry.register("lag_seconds", lag, m.lag.clone());
        m.registry.register("attempts", "Attempts by outcome", m.attempts.clone());
        m.registry.register("early", "Attempts sent before their time: a bug", m.early.clone());
        m.registry.register("requests", "Requests answered", m.requests.clone());
        m.registry.register(
            "connections",
            "Open connections to this broker",
            m.connections.clone(),
        );
        let open = "Open connections to receivers of webhooks, in use and idle";
        m.registry.register("webhook_connections", open, m.webhook_connections.clone());
        let waits =
            "Deliveries that wait for a connection because there are as many as there may be";
        m.registry.register("webhook_waits", waits, m.webhook_waits.clone());
        let certificates = "New certificates found in the files of TLS, and what came of them";
        m.registry.register("tls_certificates", certificates, m.certificates.clone());
        let tasks = "Changes of tasks made durable by one commit";
        m.registry.register("commit_tasks", tasks, m.commit_tasks.clone());
        m.registry.register("commit_seconds", "How long commits took", m.commit_seconds.clone());
        let suspect = "Whether the machine's clock is not believed: 1 if so";
        m.registry.register("clock_suspect", suspect, m.clock_suspect.clone());
        let offset = "How far the machine's clock is ahead of this broker's time";
        m.registry.register("clock_offset_seconds", offset, m.clock_offset_seconds.clone());
        m.registry.register_collector(Box::new(gauges));
        Self(Arc::new(metrics))
    }

    /// An attempt has an outcome. Lag is that of first attempts: a later one is late on purpose.
    pub(crate) fn attempt(
        &self,
        attempt: AttemptNo,
        fire_at: Timestamp,
        fired_at: Timestamp,
        outcome: &Outcome,
    ) {
        if attempt == AttemptNo::FIRST {
            self.0.lag.observe(fired_at.since(fire_at).as_secs_f64());
        }
        if fired_at < fire_at {
            self.0.early.inc();
        }
        let outcome = match outcome {
            Outcome::Acked => OutcomeLabel::acked,
            Outcome::Failed { .. } => OutcomeLabel::failed,
            Outcome::Refused { .. } => OutcomeLabel::refused,
            Outcome::Expired => OutcomeLabel::expired,
        };
        self.0.attempts.get_or_create(&AttemptLabels { outcome }).inc();
    }

    /// A request was answered; `route` is the pattern that it matched, never the path itself.
    pub(crate) fn request(&self, method: &Method, route: Option<&str>, status: StatusCode) {
        let labels = RequestLabels {
            method: method_label(method),
            route: route.unwrap_or("none").to_owned(),
            status: status.as_u16(),
        };
        self.0.requests.get_or_create(&labels).inc();
    }

    /// A connection was opened; it is counted until the guard is dropped.
    pub(crate) fn connection(&self) -> Connected {
        self.0.connections.inc();
        Connected(self.clone())
    }

    /// So many more connections to receivers are open, or fewer.
    pub(crate) fn webhook_connection(&self, change: i64) {
        self.0.webhook_connections.inc_by(change);
    }

    /// A delivery waits for a connection; it is counted until the guard is dropped.
    pub(crate) fn webhook_waits(&self) -> Waiting {
        self.0.webhook_waits.inc();
        Waiting(self.clone())
    }

    /// The files of TLS have changed, and what is in them is used, or cannot be.
    pub(crate) fn certificate(&self, is_used: bool) {
        let result = if is_used { CertificateLabel::used } else { CertificateLabel::failed };
        self.0.certificates.get_or_create(&CertificateLabels { result }).inc();
    }

    /// The store has made a batch durable.
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

    /// A partition has an owner here, or has none any more.
    pub(crate) fn holds(&self, partition: PartitionId, epoch: Option<Epoch>) {
        self.0.shared.holds(partition, epoch);
    }

    /// Whether this broker leads.
    pub(crate) fn leads(&self, leads: bool) {
        self.0.shared.leader.set(i64::from(leads));
    }

    /// How many brokers there are.
    pub(crate) fn brokers(&self, count: usize) {
        self.0.shared.brokers.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A write under an epoch that is over was refused.
    pub(crate) fn stale_write(&self) {
        self.0.shared.stale.inc();
    }

    /// A partition was handed over.
    pub(crate) fn handed_over(&self, took: Duration) {
        self.0.shared.hand_over_seconds.observe(took.as_secs_f64());
    }

    /// This broker's clock is off from the others', or is not any more.
    pub(crate) fn skew(&self, ahead_ms: Option<i64>) {
        #[expect(clippy::cast_precision_loss, reason = "nobody's clock is off by 2^53 ms")]
        self.0.shared.skew_seconds.set(ahead_ms.unwrap_or(0) as f64 / 1000.0);
    }

    /// A call was forwarded to the broker of its partition.
    pub(crate) fn forwarded(&self, result: Forwarded) {
        self.0.shared.forwarded(result);
    }

    /// A shared store has answered.
    pub(crate) fn store_call(&self, call: StoreCall, took: Duration) {
        self.0.shared.store_call(call, took);
    }

    /// A shared store has lost what it had answered, so many times so far.
    pub(crate) fn rewound(&self, times: u64) {
        let counted = self.0.shared.rewound.get();
        self.0.shared.rewound.inc_by(times.saturating_sub(counted));
    }

    /// The page, with what the owners hold at this moment. What nobody knows is not on it.
    pub(crate) fn page(&self, gauges: Option<Gauges>, now: Timestamp) -> String {
        let latest = gauges.map(|gauges| (gauges, now));
        *self.0.gauges.0.lock().unwrap_or_else(PoisonError::into_inner) = latest;
        let mut page = String::new();
        encode(&mut page, &self.0.registry).expect("a string takes everything");
        page
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(crate) struct Connected(Telemetry);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.0.connections.dec();
    }
}

/// A delivery that is counted as waiting.
#[derive(Debug)]
pub(crate) struct Waiting(Telemetry);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.webhook_waits.dec();
    }
}

/// What the owners held when the page was asked for last.
#[derive(Debug, Default)]
struct Latest(Mutex<Option<(Gauges, Timestamp)>>);

impl Collector for Latest {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some((gauges, now)) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) else {
            return Ok(());
        };
        let mut gauge = |name, help, value: f64| {
            let gauge = ConstGauge::new(value);
            let metric =
                encoder.encode_descriptor(name, help, None, EncodeMetric::metric_type(&gauge))?;
            EncodeMetric::encode(&gauge, metric)
        };
        #[expect(clippy::cast_precision_loss, reason = "a count beyond 2^53 may be a little off")]
        for (name, help, value) in [
            ("loaded_tasks", "Tasks in memory", gauges.loaded),
            ("backlog", "Fires due that wait to be sent", gauges.queued),
            ("inflight", "Deliveries under way", gauges.inflight),
            ("parked_lanes", "Lanes with tasks and nobody to take them", gauges.parked_lanes),
        ] {
            gauge(name, help, value as f64)?;
        }
        let overdue = "How late the oldest fire is that was not sent yet";
        let oldest = gauges.oldest_overdue.map_or(Duration::ZERO, |oldest| now.since(oldest));
        gauge("oldest_overdue_seconds", overdue, oldest.as_secs_f64())?;
        // Owners count these themselves, since they began; so they are a counter.
        let help = "Fires of cron and every tasks that a policy left out";
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
    use punctual_core::Reason;
    use punctual_engine::Skips;

    use super::*;

    #[test]
    fn the_page_has_every_name() {
        let telemetry = Telemetry::new();
        let (fire_at, fired_at) = (Timestamp::from_millis(1000), Timestamp::from_millis(1004));
        telemetry.attempt(AttemptNo::FIRST, fire_at, fired_at, &Outcome::Acked);
        let failed = Outcome::Failed { reason: Reason::new("no"), retry_in: None };
        telemetry.attempt(AttemptNo::new(2), fire_at, Timestamp::from_millis(9000), &failed);
        telemetry.request(&Method::PUT, Some("/v1/{namespace}/tasks/{key}"), StatusCode::CREATED);
        telemetry.request(&"BREW".parse().unwrap(), None, StatusCode::NOT_FOUND);
        let connected = telemetry.connection();
        telemetry.webhook_connection(1);
        let waits = telemetry.webhook_waits();
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
        telemetry.handed_over(Duration::from_millis(4));
        telemetry.skew(Some(-300));
        telemetry.forwarded(Forwarded::answered);
        telemetry.store_call(StoreCall::load, Duration::from_millis(1));
        telemetry.rewound(1);
        telemetry.rewound(2);
        let gauges = Gauges {
            loaded: 5,
            queued: 4,
            inflight: 3,
            claimed: 0,
            claimed_aside: 0,
            firing: 0,
            lanes: 9,
            parked_lanes: 2,
            oldest_overdue: Some(Timestamp::from_millis(8500)),
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
            "punctual_requests_total{method=\"PUT\",route=\"/v1/{namespace}/tasks/{key}\",status=\"201\"} 1",
            "punctual_requests_total{method=\"other\",route=\"none\",status=\"404\"} 1",
            "punctual_connections 1",
            "punctual_webhook_connections 1",
            "punctual_webhook_waits 1",
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
            "punctual_leader 1",
            "punctual_brokers 3",
            "punctual_stale_epoch_rejected_total 1",
            "punctual_hand_over_seconds_count 1",
            "punctual_clock_skew_seconds -0.3",
            "punctual_forwarded_total{result=\"answered\"} 1",
            "punctual_store_call_seconds_count{call=\"load\"} 1",
            "punctual_store_rewound_total 2",
            "# EOF",
        ] {
            assert!(page.lines().any(|got| got == line), "{line}\n{page}");
        }
        assert!(page.contains("punctual_build_info{version=\""), "{page}");
        assert!(page.contains("timezone_data=\"20"), "{page}");
        drop((connected, waits));
        let page = telemetry.page(None, Timestamp::EPOCH);
        assert!(page.contains("punctual_connections 0"), "{page}");
        assert!(page.contains("punctual_webhook_waits 0"), "{page}");
        assert!(!page.contains("punctual_backlog"), "{page}");
    }

    #[test]
    fn an_early_attempt_is_counted() {
        let telemetry = Telemetry::new();
        let (early, due) = (Timestamp::from_millis(999), Timestamp::from_millis(1000));
        telemetry.attempt(AttemptNo::FIRST, due, early, &Outcome::Acked);
        assert!(telemetry.page(None, Timestamp::EPOCH).contains("punctual_early_total 1"));
    }
}
