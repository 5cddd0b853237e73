//! Readings of alarms: what all brokers together have measured.
//!
//! Failures and lags come from the windows of each broker, dead letters and overdue tasks from
//! `stats`, workers from the hubs. What cannot be measured right now, because a broker or the store
//! does not answer, has no reading; a window without the counts of a broker has an incomplete one.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    AlarmCondition, AlarmState, AlarmStatus, AlarmValue, BrokerId, Clock as _, Namespace, Queue,
    Reading, Timestamp,
};
use tokio::time::timeout;

use super::stored::StoredAlarm;
use crate::api::count_tasks::count_tasks;
use crate::api::queue_list::list_workers;
use crate::api::task_stats::TaskStats;
use crate::broker::Broker;
use crate::gather_measures::{Gathered, sum_windows};
use crate::measures::windows::{WindowCounts, WindowSpec, WindowSum};

/// How long one source may take to answer. An alarm is raised within two seconds.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How much longer than that counting tasks may take, for each partition: all of them are asked.
const COUNT_MAX: Duration = Duration::from_millis(2);
/// Counting tasks takes at most this part of the time. With very many partitions on a slow store,
/// dead letters and overdue tasks are therefore measured less often.
const COUNT_PART: u32 = 10;

/// What is remembered between two rounds of readings.
#[derive(Debug)]
pub(crate) struct Measurer {
    /// Since when all brokers have answered, so that no counts are missing.
    complete_since: Timestamp,
    brokers: BTreeSet<BrokerId>,
    /// Whether all brokers have answered in the last round.
    all_answered: bool,
    /// Since when a queue has had no worker.
    without_workers: HashMap<(Namespace, Queue), Timestamp>,
    /// The counts of namespaces, and when they are to be read again.
    stats: HashMap<Namespace, TaskStats>,
    stats_after: Timestamp,
}

/// What was measured at one time.
#[derive(Debug, Default)]
struct Sources {
    windows: HashMap<WindowSpec, WindowSum>,
    stats: HashMap<Namespace, TaskStats>,
    /// The queues of a namespace that have a worker.
    served: HashMap<Namespace, BTreeSet<Queue>>,
}

impl Measurer {
    pub(crate) fn new(now: Timestamp) -> Self {
        let (brokers, without_workers) = (BTreeSet::new(), HashMap::new());
        let (stats, stats_after) = (HashMap::new(), now);
        let (complete_since, all_answered) = (now, true);
        Self { complete_since, brokers, all_answered, without_workers, stats, stats_after }
    }

    /// Returns a reading for each alarm; `None` if it cannot be measured now.
    pub(crate) async fn read(
        &mut self,
        broker: &Arc<Broker>,
        alarms: &[StoredAlarm],
    ) -> Vec<Option<Reading>> {
        let sources = Sources {
            windows: self.windows(broker, alarms).await,
            stats: self.stats(broker, alarms).await,
            served: served(broker, alarms).await,
        };
        let now = broker.clock.now();
        self.note_workers(alarms, &sources, now);
        alarms.iter().map(|alarm| self.reading(alarm, &sources, now)).collect()
    }

    /// Returns the stats of the namespaces that need them: those of the last time, if counting
    /// takes long.
    async fn stats(
        &mut self,
        broker: &Broker,
        alarms: &[StoredAlarm],
    ) -> HashMap<Namespace, TaskStats> {
        let started = broker.clock.now();
        if started >= self.stats_after {
            self.stats = stats(broker, alarms).await;
            let now = broker.clock.now();
            self.stats_after = now.after(now.since(started) * COUNT_PART);
        }
        self.stats.clone()
    }

    /// Sums the windows of all brokers.
    async fn windows(
        &mut self,
        broker: &Arc<Broker>,
        alarms: &[StoredAlarm],
    ) -> HashMap<WindowSpec, WindowSum> {
        let specs: BTreeSet<WindowSpec> = alarms.iter().filter_map(spec_of).collect();
        let specs: Vec<_> = specs.into_iter().collect();
        let now = broker.clock.now();
        let Gathered { sum, others, all_answered } = sum_windows(broker, &specs).await;
        let one_left = !self.brokers.is_subset(&others);
        if one_left || !all_answered {
            self.complete_since = now;
        }
        self.brokers = others;
        self.all_answered = all_answered;
        specs.into_iter().zip(sum).collect()
    }

    /// Remembers since when queues have had no worker.
    fn note_workers(&mut self, alarms: &[StoredAlarm], sources: &Sources, now: Timestamp) {
        let mut watched = BTreeSet::new();
        for alarm in alarms {
            let AlarmCondition::NoWorkers { queue, .. } = &alarm.rule.when else { continue };
            let Some(served) = sources.served.get(&alarm.namespace) else { continue };
            let line = (alarm.namespace.clone(), queue.clone());
            if served.contains(queue) {
                self.without_workers.remove(&line);
            } else {
                self.without_workers.entry(line.clone()).or_insert(now);
            }
            watched.insert(line);
        }
        self.without_workers.retain(|line, _| watched.contains(line));
    }

    fn reading(&self, alarm: &StoredAlarm, sources: &Sources, now: Timestamp) -> Option<Reading> {
        let namespace = &alarm.namespace;
        let whole = |value| Reading { value, complete: true };
        match &alarm.rule.when {
            AlarmCondition::Failures { .. }
            | AlarmCondition::FailureShare { .. }
            | AlarmCondition::Lag { .. } => {
                let spec = spec_of(alarm)?;
                let sum = sources.windows.get(&spec)?;
                let since = sum.since.max(self.complete_since);
                let complete = now.since(since) >= spec.window;
                Some(Reading { value: window_value(&alarm.rule.when, sum), complete })
            }
            AlarmCondition::DeadLetters { .. } => {
                let letters = sources.stats.get(namespace)?.counts.dead_letters;
                Some(whole(AlarmValue::Count(u64::try_from(letters).unwrap_or(0))))
            }
            AlarmCondition::Overdue { .. } => {
                let oldest = sources.stats.get(namespace)?.oldest_overdue;
                let late = oldest.map_or(Duration::ZERO, |oldest| now.since(oldest));
                Some(whole(AlarmValue::Time(late)))
            }
            AlarmCondition::NoWorkers { queue, .. } => {
                let served = sources.served.get(namespace)?.contains(queue);
                let since = self.without_workers.get(&(namespace.clone(), queue.clone()));
                let without = since.map_or(Duration::ZERO, |since| now.since(*since));
                Some(Reading { value: AlarmValue::Time(without), complete: served })
            }
        }
    }
}

/// Returns the present value of each alarm, on any broker; `None` if it cannot be measured now.
pub(crate) async fn present_values(
    broker: &Arc<Broker>,
    alarms: &[StoredAlarm],
) -> Vec<Option<AlarmValue>> {
    let mut measurer = Measurer::new(broker.clock.now());
    let readings = measurer.read(broker, alarms).await;
    let now = broker.clock.now();
    let value = |(alarm, reading): (&StoredAlarm, Option<Reading>)| {
        // Without the counts of a broker the value would be too small.
        let is_partial = alarm.rule.when.window().is_some() && !measurer.all_answered;
        reading.filter(|_| !is_partial).and_then(|reading| present_value(alarm, reading, now))
    };
    alarms.iter().zip(readings).map(value).collect()
}

/// The value of a first reading. How long a queue has had no worker is known only to the evaluator,
/// and from the status of an alarm that is raised.
fn present_value(alarm: &StoredAlarm, reading: Reading, now: Timestamp) -> Option<AlarmValue> {
    match (&alarm.rule.when, &alarm.status) {
        (AlarmCondition::NoWorkers { .. }, _) if reading.complete => Some(reading.value),
        (
            AlarmCondition::NoWorkers { .. },
            AlarmStatus {
                state: AlarmState::Raised,
                value: Some(AlarmValue::Time(without)),
                noticed_at,
                ..
            },
        ) => Some(AlarmValue::Time(*without + now.since(*noticed_at))),
        (AlarmCondition::NoWorkers { .. }, _) => None,
        _ => Some(reading.value),
    }
}

/// The window of an alarm; `None` if only the present counts for it.
fn spec_of(alarm: &StoredAlarm) -> Option<WindowSpec> {
    let window = alarm.rule.when.window()?;
    let counts = match alarm.rule.when {
        AlarmCondition::Lag { p99_over, .. } => WindowCounts::LaterThan(p99_over),
        _ => WindowCounts::Failures,
    };
    Some(WindowSpec { namespace: Some(alarm.namespace.clone()), window, counts })
}

fn window_value(when: &AlarmCondition, sum: &WindowSum) -> AlarmValue {
    match when {
        AlarmCondition::Lag { p99_over, .. } => AlarmValue::Time(sum.lag_p99(*p99_over)),
        AlarmCondition::FailureShare { .. } => {
            AlarmValue::Share { failed: sum.counted, total: sum.total }
        }
        _ => AlarmValue::Count(sum.counted),
    }
}

fn namespaces(
    alarms: &[StoredAlarm],
    is_wanted: impl Fn(&AlarmCondition) -> bool,
) -> BTreeSet<Namespace> {
    let wanted = alarms.iter().filter(|alarm| is_wanted(&alarm.rule.when));
    wanted.map(|alarm| alarm.namespace.clone()).collect()
}

/// Returns the stats of the namespaces that need them and can be measured now. The type of the
/// future is erased, because those of several calls are nested in it.
fn stats<'a>(
    broker: &'a Broker,
    alarms: &'a [StoredAlarm],
) -> Pin<Box<dyn Future<Output = HashMap<Namespace, TaskStats>> + Send + 'a>> {
    Box::pin(async move {
        let (mut all, now) = (HashMap::new(), broker.clock.now());
        let max = ANSWER_MAX + COUNT_MAX * u32::from(broker.owners.partitions().count());
        for namespace in namespaces(alarms, |when| {
            matches!(when, AlarmCondition::DeadLetters { .. } | AlarmCondition::Overdue { .. })
        }) {
            if let Ok(Ok(stats)) = timeout(max, count_tasks(broker, &namespace, now)).await {
                all.insert(namespace, stats);
            }
        }
        all
    })
}

/// Returns the queues that have workers, of the namespaces that need them.
async fn served(broker: &Broker, alarms: &[StoredAlarm]) -> HashMap<Namespace, BTreeSet<Queue>> {
    let mut all = HashMap::new();
    for namespace in namespaces(alarms, |when| matches!(when, AlarmCondition::NoWorkers { .. })) {
        if let Ok(Ok(workers)) = timeout(ANSWER_MAX, list_workers(broker, &namespace)).await {
            let queues = workers.into_iter().flat_map(|(_, worker)| worker.queues).collect();
            all.insert(namespace, queues);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use punctual_core::{AlarmName, AlarmReceiver, AlarmRule, HttpTarget, Method};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + seconds * 1000)
    }

    fn alarm(when: AlarmCondition) -> StoredAlarm {
        let webhook = HttpTarget::new("http://h/x", Method::Post, vec![]).unwrap();
        let rule = AlarmRule { when, to: AlarmReceiver::Http(webhook), repeat_after: None };
        let (shop, name) = (Namespace::new("shop").unwrap(), AlarmName::new("a").unwrap());
        StoredAlarm::new(&shop, &name, &rule, at(0))
    }

    fn served(queues: &[&str]) -> Sources {
        let queues = queues.iter().map(|name| Queue::new(name).unwrap()).collect();
        let served = HashMap::from([(Namespace::new("shop").unwrap(), queues)]);
        Sources { served, ..Sources::default() }
    }

    #[test]
    fn a_window_is_complete_when_all_brokers_have_counted_all_of_it() {
        let failures = alarm(AlarmCondition::Failures { count: 5, window: SECOND * 60 });
        let spec = spec_of(&failures).unwrap();
        let sum = WindowSum { total: 9, counted: 7, ..WindowSum::empty(at(100)) };
        let windows = HashMap::from([(spec, sum)]);
        let sources = Sources { windows, ..Sources::default() };
        for (complete_since, now, complete) in [
            (at(0), at(159), false),
            (at(0), at(160), true),
            (at(130), at(160), false),
            (at(130), at(190), true),
        ] {
            let measurer = Measurer { complete_since, ..Measurer::new(at(0)) };
            let reading = Some(Reading { value: AlarmValue::Count(7), complete });
            assert_eq!(measurer.reading(&failures, &sources, now), reading, "{now}");
        }
    }

    #[test]
    fn what_was_not_measured_has_no_reading() {
        let (measurer, nothing) = (Measurer::new(at(0)), Sources::default());
        for when in [
            AlarmCondition::Lag { p99_over: SECOND, window: SECOND },
            AlarmCondition::DeadLetters { over: 0 },
            AlarmCondition::Overdue { over: SECOND },
            AlarmCondition::NoWorkers { queue: Queue::new("q").unwrap(), longest: SECOND },
        ] {
            assert_eq!(measurer.reading(&alarm(when), &nothing, at(9)), None);
        }
    }

    #[test]
    fn the_time_without_workers_counts_from_the_last_one_and_ends_only_with_a_worker() {
        let queue = Queue::new("q").unwrap();
        let alarms = [alarm(AlarmCondition::NoWorkers { queue, longest: SECOND * 60 })];
        let mut measurer = Measurer::new(at(0));
        for (second, queues, without, complete) in [
            (10, &["q"][..], 0, true),
            (11, &["other"], 0, false),
            (15, &[], 4, false),
            (16, &["q"], 0, true),
            (20, &[], 0, false),
            (90, &[], 70, false),
        ] {
            let (sources, now) = (served(queues), at(second));
            measurer.note_workers(&alarms, &sources, now);
            let reading = measurer.reading(&alarms[0], &sources, now).unwrap();
            let want = Reading { value: AlarmValue::Time(SECOND * without), complete };
            assert_eq!(reading, want, "second {second}");
        }
        measurer.note_workers(&[], &served(&[]), at(91));
        assert!(measurer.without_workers.is_empty(), "a deleted alarm is forgotten");
    }
}
