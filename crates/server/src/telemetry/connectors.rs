//! Metrics of connections and sources. Their names are the operator's, so they may be labels.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use punctual_core::Outcome;
use punctual_engine::ConnectionState;
use std::sync::atomic::AtomicU64;

use super::{AttemptLabels, OutcomeLabel};

#[derive(Debug, Default)]
pub(super) struct ConnectorMetrics {
    deliveries: Family<DeliveryLabels, Counter>,
    away: Family<ConnectionLabels, Gauge>,
    rows: Family<RowLabels, Counter>,
    lag_seconds: Family<SourceLabels, Gauge<f64, AtomicU64>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    connection: String,
    outcome: OutcomeLabel,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConnectionLabels {
    connection: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RowLabels {
    source: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    source: String,
}

impl ConnectorMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Deliveries over connections that have ended, by outcome";
        registry.register("connection_deliveries", help, metrics.deliveries.clone());
        let help = "1 if a connection is away, else 0";
        registry.register("connection_away", help, metrics.away.clone());
        let help = "Rows and messages that sources have taken, by whether they were rejected";
        registry.register("source_rows", help, metrics.rows.clone());
        let help = "How long the oldest row of the last read had waited, in seconds";
        registry.register("source_lag_seconds", help, metrics.lag_seconds.clone());
        metrics
    }

    pub(super) fn delivery(&self, connection: &str, outcome: &Outcome) {
        let (connection, outcome) = (connection.to_owned(), AttemptLabels::of(outcome).outcome);
        self.deliveries.get_or_create(&DeliveryLabels { connection, outcome }).inc();
    }

    pub(super) fn state(&self, connection: &str, state: ConnectionState) {
        let labels = ConnectionLabels { connection: connection.to_owned() };
        self.away.get_or_create(&labels).set(i64::from(state == ConnectionState::Away));
    }

    pub(super) fn rows(&self, source: &str, applied: usize, rejected: usize, lag: Duration) {
        for (result, rows) in [("applied", applied), ("rejected", rejected)] {
            let labels = RowLabels { source: source.to_owned(), result };
            self.rows.get_or_create(&labels).inc_by(rows as u64);
        }
        let labels = SourceLabels { source: source.to_owned() };
        self.lag_seconds.get_or_create(&labels).set(lag.as_secs_f64());
    }
}
