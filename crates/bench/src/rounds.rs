//! Rounds: measures a rate several times, in turns with the system beside the broker if there is
//! one, and reports the medians.
//!
//! Before each turn both servers must be idle, so that neither pays for the background work of the
//! other. A machine that becomes slower or faster during a row affects both sides alike.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::{BenchTimer, pause};
use crate::context::BenchContext;
use crate::peer::BenchPeer;
use crate::report::{BenchReport, grouped, rate};

/// How long a server may go on with background work before it is measured all the same.
const IDLE_WAITS_MAX: usize = 25;
/// How long a server must use no more than [`IDLE_CPU_MAX`] of CPU time to be idle.
const IDLE_MS: u64 = 200;
const IDLE_CPU_MAX: Duration = Duration::from_millis(10);

/// Tasks of a batch.
pub(crate) const BATCH: u64 = 1000;

/// How much is sent at once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SendShape {
    /// One request at a time on each connection.
    One { connections: u64 },
    /// Batches, with this many in flight on each connection.
    Batches { connections: u64, in_flight: usize },
    /// Callers of the Rust client, which gathers their calls on one connection.
    Callers { callers: u64 },
}

impl SendShape {
    /// How many tasks of the bench send at once.
    pub(crate) fn senders(self) -> u64 {
        match self {
            Self::One { connections } | Self::Batches { connections, .. } => connections,
            Self::Callers { callers } => callers,
        }
    }

    /// Requests or batches in flight of each sender.
    pub(crate) fn in_flight(self) -> usize {
        match self {
            Self::Batches { in_flight, .. } => in_flight,
            Self::One { .. } | Self::Callers { .. } => 1,
        }
    }

    /// Tasks of one request.
    pub(crate) fn batch_tasks(self) -> u64 {
        match self {
            Self::Batches { .. } => BATCH,
            Self::One { .. } | Self::Callers { .. } => 1,
        }
    }

    /// What is different on the other side: each caller has a connection of its own.
    fn peer_words(self) -> Option<String> {
        match self {
            Self::Callers { callers } => Some(format!("{callers} connections")),
            Self::One { .. } | Self::Batches { .. } => None,
        }
    }

    fn words(self) -> String {
        let count = |number: u64, noun: &str| match number {
            1 => format!("1 {noun}"),
            _ => format!("{number} {noun}s"),
        };
        match self {
            Self::One { connections } => count(connections, "connection"),
            Self::Batches { connections, in_flight } => {
                let batches = if in_flight == 1 { "batch" } else { "batches" };
                let each = if connections == 1 { "" } else { " on each" };
                let connections = count(connections, "connection");
                format!("{connections}, {in_flight} {batches} in flight{each}")
            }
            Self::Callers { callers } => format!("{}, 1 connection", count(callers, "caller")),
        }
    }

    fn figures(self) -> Value {
        match self {
            Self::One { connections } => json!({"connections": connections}),
            Self::Batches { connections, in_flight } => {
                json!({"connections": connections, "batches_in_flight_each": in_flight})
            }
            Self::Callers { callers } => json!({"connections": 1, "callers": callers}),
        }
    }
}

/// Measures one turn of one side.
#[derive(Debug)]
pub(crate) struct TurnTimer {
    timer: BenchTimer,
    /// The CPU time that the server had used.
    before: Option<Duration>,
    /// The CPU time that the server of the broker's store had used.
    store_before: Option<Duration>,
}

/// What one side reached in one turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnResult {
    pub(crate) per_second: u64,
    /// CPU time of the server for each task, if it is a child of this process.
    pub(crate) cpu_us: Option<f64>,
    /// CPU time of the server of the broker's store for each task, if it has one.
    pub(crate) store_us: Option<f64>,
}

impl TurnTimer {
    /// Starts a turn of a broker.
    pub(crate) fn of_broker(bench: &BenchContext) -> Self {
        let (before, store_before) = (bench.broker.cpu(), bench.store.cpu());
        Self { timer: BenchTimer::start(), before, store_before }
    }

    /// Starts a turn of the system beside the broker.
    pub(crate) fn of_peer(peer: &BenchPeer) -> Self {
        Self { timer: BenchTimer::start(), before: peer.cpu(), store_before: None }
    }

    pub(crate) fn finish_of_broker(self, count: u64, bench: &BenchContext) -> TurnResult {
        self.finish(count, bench.broker.cpu(), bench.store.cpu())
    }

    pub(crate) fn finish_of_peer(self, count: u64, peer: &BenchPeer) -> TurnResult {
        self.finish(count, peer.cpu(), None)
    }

    fn finish(
        self,
        count: u64,
        after: Option<Duration>,
        store_after: Option<Duration>,
    ) -> TurnResult {
        let per_second = rate(count, self.timer.elapsed());
        let each = |after: Option<Duration>, before: Option<Duration>| {
            each(Some(after?.saturating_sub(before?)), count)
        };
        let (cpu_us, store_us) = (each(after, self.before), each(store_after, self.store_before));
        TurnResult { per_second, cpu_us, store_us }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an average for people")]
fn each(cpu: Option<Duration>, count: u64) -> Option<f64> {
    cpu.filter(|_| count > 0).map(|cpu| cpu.as_secs_f64() * 1e6 / count as f64)
}

/// What one side reached in all rounds.
#[derive(Debug, Default)]
pub(crate) struct SideResults(Vec<TurnResult>);

impl SideResults {
    pub(crate) fn per_second(&self) -> u64 {
        median(self.0.iter().map(|turn| turn.per_second), u64::cmp).unwrap_or(0)
    }

    fn cpu_us(&self) -> Option<f64> {
        median(self.0.iter().filter_map(|turn| turn.cpu_us), f64::total_cmp)
    }

    fn store_us(&self) -> Option<f64> {
        median(self.0.iter().filter_map(|turn| turn.store_us), f64::total_cmp)
    }

    fn figures(&self) -> Value {
        let rounds: Vec<_> = self.0.iter().map(|turn| turn.per_second).collect();
        json!({"per_second": self.per_second(), "cpu_us": self.cpu_us(),
            "store_cpu_us": self.store_us(), "rounds": rounds})
    }
}

/// The middle value; of an even number of values the lower one in the middle.
fn median<T>(
    values: impl Iterator<Item = T>,
    order: impl Fn(&T, &T) -> std::cmp::Ordering,
) -> Option<T> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(order);
    let middle = values.len().checked_sub(1)? / 2;
    values.into_iter().nth(middle)
}

/// What the broker reached, and the system beside it, with its name in JSON.
#[derive(Debug, Default)]
pub(crate) struct RoundResults {
    pub(crate) broker: SideResults,
    peer: Option<(&'static str, SideResults)>,
}

impl RoundResults {
    /// How many times the rate of the other system the broker has reached.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    fn ratio(&self) -> Option<f64> {
        let (_, peer) = self.peer.as_ref()?;
        let peer = peer.per_second();
        (peer > 0).then(|| self.broker.per_second() as f64 / peer as f64)
    }
}

impl BenchContext {
    /// Measures the broker and then the system beside it, if there is one, in each round.
    pub(crate) async fn rounds(
        &self,
        broker: impl AsyncFn(&Self) -> anyhow::Result<TurnResult>,
        peer: impl AsyncFn(&BenchPeer) -> anyhow::Result<TurnResult>,
    ) -> anyhow::Result<RoundResults> {
        let mut results = RoundResults::default();
        for _ in 0..self.rounds.max(1) {
            self.until_idle().await;
            results.broker.0.push(broker(self).await?);
            if let Some(beside) = &self.peer {
                self.until_idle().await;
                let turn = peer(beside).await?;
                let none = || (beside.word(), SideResults::default());
                results.peer.get_or_insert_with(none).1.0.push(turn);
            }
        }
        Ok(results)
    }

    /// Waits until the servers use hardly any CPU time.
    async fn until_idle(&self) {
        let cpu = || {
            let peer = self.peer.as_ref().and_then(BenchPeer::cpu);
            [self.broker.cpu(), peer, self.store.cpu()].into_iter().flatten().sum()
        };
        for _ in 0..IDLE_WAITS_MAX {
            let before: Duration = cpu();
            pause(IDLE_MS / self.divisor).await;
            if cpu().saturating_sub(before) <= IDLE_CPU_MAX {
                return;
            }
        }
    }
}

/// A row of the report about a rate.
#[derive(Debug)]
pub(crate) struct RateRow {
    pub(crate) what: String,
    pub(crate) shape: SendShape,
    pub(crate) wanted: &'static str,
    /// More about the broker, after its rate: words, and figures by name.
    pub(crate) notes: Vec<(String, &'static str, Value)>,
}

impl RateRow {
    pub(crate) fn new(what: impl Into<String>, shape: SendShape, wanted: &'static str) -> Self {
        Self { what: what.into(), shape, wanted, notes: Vec::new() }
    }

    /// Adds the row to a report.
    pub(crate) fn report(self, results: &RoundResults, report: &mut BenchReport) {
        let what = format!("{}, {}", self.what, self.shape.words());
        let words = |side: &SideResults, notes: &[String]| {
            let cpu = side.cpu_us().map(|cpu| format!("{cpu:.1} µs of CPU each"));
            let store = side.store_us().map(|cpu| format!("{cpu:.1} µs of the store's server"));
            let notes: Vec<_> = cpu.into_iter().chain(store).chain(notes.iter().cloned()).collect();
            match notes.join(", ").as_str() {
                "" => format!("{}/s", grouped(side.per_second())),
                notes => format!("{}/s ({notes})", grouped(side.per_second())),
            }
        };
        let mut figures = self.shape.figures();
        merge(&mut figures, results.broker.figures());
        let mut notes = Vec::new();
        for (words, name, figure) in self.notes {
            notes.push(words);
            figures[name] = figure;
        }
        let mut cells = vec![what, words(&results.broker, &notes), self.wanted.to_owned()];
        if let (Some((name, peer)), ratio) = (&results.peer, results.ratio()) {
            let notes: Vec<_> = self.shape.peer_words().into_iter().collect();
            cells.push(words(peer, &notes));
            cells.push(ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}")));
            figures[*name] = peer.figures();
            figures["ratio"] = ratio.into();
        }
        report.cells(cells, figures);
    }
}

fn merge(figures: &mut Value, more: Value) {
    if let (Value::Object(figures), Value::Object(more)) = (figures, more) {
        figures.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(rates: &[u64]) -> SideResults {
        let turn =
            |per_second: &u64| TurnResult { per_second: *per_second, cpu_us: None, store_us: None };
        SideResults(rates.iter().map(turn).collect())
    }

    #[test]
    fn the_ratio_is_that_of_the_medians() {
        for (broker, peer, ratio) in [
            (&[100, 900, 300][..], &[150, 100, 9_000][..], Some(2.0)),
            (&[100], &[200], Some(0.5)),
            (&[300, 100], &[100, 400], Some(1.0)),
            (&[100], &[0], None),
        ] {
            let results = RoundResults { broker: side(broker), peer: Some(("redis", side(peer))) };
            assert_eq!(results.ratio(), ratio, "{broker:?} beside {peer:?}");
        }
        assert_eq!(RoundResults { broker: side(&[1]), peer: None }.ratio(), None);
    }

    #[test]
    fn a_row_says_how_much_is_sent_at_once() {
        for (shape, words) in [
            (SendShape::One { connections: 1 }, "1 connection"),
            (SendShape::One { connections: 16 }, "16 connections"),
            (SendShape::Callers { callers: 64 }, "64 callers, 1 connection"),
            (
                SendShape::Batches { connections: 1, in_flight: 16 },
                "1 connection, 16 batches in flight",
            ),
            (
                SendShape::Batches { connections: 16, in_flight: 1 },
                "16 connections, 1 batch in flight on each",
            ),
        ] {
            assert_eq!(shape.words(), words);
        }
    }
}
