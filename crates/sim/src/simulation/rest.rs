//! The end of a run: waits until the cluster has come to rest, and checks owners, clocks and the
//! final state of the store.

use super::*;

impl Simulation {
    pub(super) fn check_rest(&mut self) {
        let healed = self.healed.unwrap_or(self.now);
        if self.calls.is_empty() && !self.series_cancelled {
            self.series_cancelled = true;
            let last = callers::cancel_series(self.partitions);
            let resumed = callers::resume_all(&self.checker, self.partitions);
            for call in last.into_iter().chain(resumed) {
                self.new_call(call);
            }
        }
        if self.calls.is_empty() {
            for call in self.record.resume_all(&self.store, self.partitions) {
                self.new_call(call);
            }
        }
        let quiet = self.series_cancelled && self.is_at_rest();
        if !quiet && self.now - healed < REST_MAX_MS {
            return self.events.send(self.now + 1_000, None, SimEvent::CheckRest);
        }
        if !quiet {
            let observed = self.describe_unrest();
            return self.checker.break_promise("G3 nothing stays overdue", observed);
        }
        self.is_over = true;
        self.check_owners();
        self.record.read_batches(&self.store);
        let callbacks = self.record.callbacks.len();
        self.checker.check_at_rest(&self.store, &callers::shop(), self.partitions, callbacks);
        self.record.check_at_rest(&self.store, self.partitions, &mut self.checker);
        self.figures.callbacks = callbacks as u64;
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let living = self.brokers.iter().filter(|broker| broker.is_alive());
        let mut owners = living.clone().flat_map(|broker| broker.owners.values());
        let busy = owners.any(|held| held.owner.loaded() > 0 || !held.owner.is_quiet());
        let moving = living.clone().any(|broker| {
            broker.state != BrokerState::Runs
                || broker.is_leaving
                || self.now < broker.started_at + BALANCE_MAX_MS
        });
        !busy && !moving && self.calls.is_empty() && self.scheduled() == 0
    }

    /// Counts tasks that are still scheduled.
    pub(super) fn scheduled(&self) -> usize {
        let waiting = self.partitions.iter().map(|partition| {
            let filter =
                Filter { state: Some(TaskState::Scheduled), ..Filter::all(callers::shop()) };
            let page = ready(self.store.memory.list(partition, &filter, Position::START, 1_000));
            page.expect("the memory store answers").items.len()
        });
        waiting.sum()
    }

    pub(super) fn describe_unrest(&self) -> String {
        let mut observed = format!("{} scheduled, {} calls", self.scheduled(), self.calls.len());
        for broker in &self.brokers {
            let loaded: usize = broker.owners.values().map(|held| held.owner.loaded()).sum();
            let owners: Vec<_> = broker.owners.keys().map(ToString::to_string).collect();
            observed +=
                &format!("; {} {:?} {owners:?} {loaded} loaded", broker.id.as_str(), broker.state);
        }
        observed
    }

    /// Checks that every partition has one owner, and that partitions are balanced.
    pub(super) fn check_owners(&mut self) {
        let mut counts = BTreeMap::new();
        let mut vacant: BTreeSet<_> = self.partitions.iter().collect();
        for (number, broker) in self.brokers.iter().enumerate().filter(|(_, it)| it.is_alive()) {
            let local_time = broker.clock.at(self.now);
            let acting = broker.owners.iter().filter(|(_, held)| local_time < held.until);
            let acting: Vec<_> = acting.map(|(partition, _)| *partition).collect();
            counts.insert(number, acting.len());
            for partition in acting {
                if !vacant.remove(&partition) {
                    let observed = format!("{partition} has two owners");
                    self.checker.break_promise("every partition has one owner", observed);
                }
            }
        }
        if !vacant.is_empty() {
            let observed = format!("without one: {vacant:?}; {}", self.describe_unrest());
            self.checker.break_promise("every partition has one owner", observed);
        }
        let (most, least) = (counts.values().max(), counts.values().min());
        if most.zip(least).is_some_and(|(most, least)| most - least > 1) {
            self.checker.break_promise("partitions are balanced", format!("{counts:?}"));
        }
    }

    /// Returns how early a delivery of a broker may be: as much as its clock is ahead, unless the
    /// other brokers must have noticed.
    pub(crate) fn error_max(&self, number: usize) -> i64 {
        let since = match self.brokers[number].skewed_since {
            Some(since) => since,
            None if self.brokers[number].clock.ahead_ms(self.now) <= UNNOTICED_MS => {
                return UNNOTICED_MS;
            }
            // Its drift has moved the clock beyond the limit.
            None => return i64::MAX,
        };
        let others = self.brokers.iter().enumerate();
        let others =
            others.filter(|(other, it)| *other != number && it.state == BrokerState::Runs).count();
        let calm_since = since.max(self.last_fault_at);
        let noticed = others > 1
            && self.is_outvoted()
            && self.now - calm_since > 3 * self.plan.lease_ms + 1_000;
        let wrong = !self.cut_store.is_empty()
            || self.store_unavailable
            || self.loss > 0
            || self.slow_ms > 0;
        if noticed && !wrong { UNNOTICED_MS } else { i64::MAX }
    }

    /// Returns whether the wrong clocks are in the minority. If most clocks are wrong in the same
    /// way, no broker can know. The store has a vote, which decides between two halves.
    pub(super) fn is_outvoted(&self) -> bool {
        let running = self.brokers.iter().filter(|broker| broker.state == BrokerState::Runs);
        let clocks = running.map(|broker| &broker.clock).chain([&self.store.clock]);
        let ahead: Vec<_> = clocks.map(|clock| clock.ahead_ms(self.now).unsigned_abs()).collect();
        let right = ahead.iter().filter(|ahead| **ahead <= 2 * CLOCK_ERROR_MS).count();
        2 * right >= ahead.len()
    }
}
