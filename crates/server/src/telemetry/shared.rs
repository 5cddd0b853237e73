//! Metrics of brokers that share a store: ownership, hand-overs, forwarded calls and store calls.
//!
//! Labels are partitions, of which there are at most 4096, and fixed sets of words.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use punctual_core::{Epoch, PartitionId};
use std::collections::BTreeSet;

/// Buckets of a store call in seconds: from a server nearby to one that does not answer.
const CALL_BOUNDS: [f64; 12] =
    [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 2.0];
/// Buckets of a hand-over in seconds.
const HAND_OVER_BOUNDS: [f64; 9] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0];

/// The result of a forwarded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "variants are the label values")]
pub(crate) enum Forwarded {
    answered,
    elsewhere,
    unreachable,
    lost,
    refused,
}

/// The kind of a store call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "variants are the label values")]
pub(crate) enum StoreCall {
    apply,
    load,
    find,
    get,
    sweep,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartitionLabels {
    partition: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ForwardedLabels {
    result: Forwarded,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: StoreCall,
}

pub(super) struct SharedMetrics {
    epochs: Family<PartitionLabels, Gauge>,
    held: Gauge,
    holds: Mutex<BTreeSet<PartitionId>>,
    pub(super) leader: Gauge,
    pub(super) brokers: Gauge,
    pub(super) stale: Counter,
    pub(super) hand_over_seconds: Histogram,
    pub(super) skew_seconds: Gauge<f64, AtomicU64>,
    forwarded: Family<ForwardedLabels, Counter>,
    calls: Family<CallLabels, Histogram>,
    pub(super) rewound: Counter,
    pub(super) damaged: Counter,
}

impl SharedMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            epochs: Family::default(),
            held: Gauge::default(),
            holds: Mutex::default(),
            leader: Gauge::default(),
            brokers: Gauge::default(),
            stale: Counter::default(),
            hand_over_seconds: Histogram::new(HAND_OVER_BOUNDS),
            skew_seconds: Gauge::default(),
            forwarded: Family::default(),
            calls: Family::new_with_constructor(|| Histogram::new(CALL_BOUNDS)),
            rewound: Counter::default(),
            damaged: Counter::default(),
        };
        let m = &metrics;
        let epoch = "Epoch under which this broker owns a partition";
        registry.register("partition_epoch", epoch, m.epochs.clone());
        registry.register("partitions_held", "Partitions that this broker owns", m.held.clone());
        registry.register("leader", "1 if this broker is the leader, else 0", m.leader.clone());
        registry.register(
            "brokers",
            "Brokers that share the store and are alive",
            m.brokers.clone(),
        );
        let stale = "Writes that the store refused because their epoch is old";
        registry.register("stale_epoch_rejected", stale, m.stale.clone());
        let hand_over = "How long a partition had no owner during a hand-over, in seconds";
        registry.register("hand_over_seconds", hand_over, m.hand_over_seconds.clone());
        let skew =
            "How far this broker's clock is ahead of the others, in seconds; 0 if within bounds";
        registry.register("clock_skew_seconds", skew, m.skew_seconds.clone());
        let forwarded = "Calls that were forwarded to other brokers, by result";
        registry.register("forwarded", forwarded, m.forwarded.clone());
        let calls = "Duration of a call of the shared store, in seconds";
        registry.register("store_call_seconds", calls, m.calls.clone());
        let rewound = "How often the shared store has lost acknowledged writes";
        registry.register("store_rewound", rewound, m.rewound.clone());
        let damaged = "Values of the shared store that cannot be read, each counted once";
        registry.register("store_damaged_values", damaged, m.damaged.clone());
        metrics
    }

    pub(super) fn holds(&self, partition: PartitionId, epoch: Option<Epoch>) {
        let labels = PartitionLabels { partition: partition.get() };
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(epoch) = epoch {
            holds.insert(partition);
            self.epochs.get_or_create(&labels).set(i64::from(epoch.get()));
        } else {
            holds.remove(&partition);
            self.epochs.remove(&labels);
        }
        self.held.set(i64::try_from(holds.len()).unwrap_or(i64::MAX));
    }

    pub(super) fn forwarded(&self, result: Forwarded) {
        self.forwarded.get_or_create(&ForwardedLabels { result }).inc();
    }

    pub(super) fn store_call(&self, call: StoreCall, took: Duration) {
        self.calls.get_or_create(&CallLabels { call }).observe(took.as_secs_f64());
    }
}
