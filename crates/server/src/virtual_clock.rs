//! Moves the virtual clock of `punctual dev` from one due instant to the next.
//!
//! [`VirtualClock::advance`] stops at every instant at which a task, a retry, a watch or the end of
//! a lease is due, in the order of time. It goes to the next one when every owner is idle: what was
//! due has been delivered, settled and written. Deliveries that a worker holds, or is about to poll
//! for, are waited for, for a bounded time; deliveries in a queue without a worker are not.
//!
//! `clock` has the time itself, `engine/idle.rs` says when an owner is idle, and
//! `api/http/clock.rs` has the routes.

use std::collections::HashSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Clock as _, Timestamp};
use punctual_engine::{EngineError, IdleReport, LaneQuery, LaneTarget, LaneView};
use tokio::time::timeout;

use crate::alarms::evaluate::AlarmEvaluator;
use crate::broker::Broker;
use crate::clock::Speed;
use crate::courier::queue::LeaseToken;

/// How often the hub is checked while workers hold deliveries or are about to poll. The end of a
/// lease wakes the clock earlier.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// How often alarms are evaluated on the way, in virtual time, if there are any. What they measure
/// is forgotten after a minute.
const EVALUATE_EVERY: Duration = Duration::from_secs(30);

/// How the virtual clock is moved.
#[derive(Debug, Clone)]
pub(crate) struct VirtualClock {
    /// Its turn is held by the call that moves the clock or evaluates the alarms: one at a time.
    evaluator: Arc<AlarmEvaluator>,
}

/// How far to advance.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AdvanceEnd {
    By(Duration),
    To(Timestamp),
}

/// What an advance came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Advanced {
    pub(crate) now: Timestamp,
    /// Fires that became due on the way. Retries do not count.
    pub(crate) fires: u64,
    /// Deliveries that a worker had not settled within the wait.
    pub(crate) unsettled: usize,
}

/// Why an advance has not ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdvanceError {
    /// The end is before the present time.
    #[error("the clock is at {now} already, and does not go back")]
    Past { now: Timestamp },
    #[error(transparent)]
    Owner(#[from] EngineError),
}

/// What has happened at an instant, and what is next.
struct SettledInstant {
    /// Fires since the owners have started.
    fires: u64,
    next_due: Option<Timestamp>,
}

impl VirtualClock {
    pub(crate) const fn new(evaluator: Arc<AlarmEvaluator>) -> Self {
        Self { evaluator }
    }

    /// Moves the clock forward, and returns when everything that became due on the way has been
    /// delivered and settled. A clock that runs is frozen meanwhile, and then runs on.
    ///
    /// If the caller goes away, the clock stays at the last instant that was reached.
    pub(crate) async fn advance(
        &self,
        broker: &Arc<Broker>,
        end: AdvanceEnd,
        wait: Duration,
    ) -> Result<Advanced, AdvanceError> {
        let mut alarms = self.evaluator.turn().await;
        let start = broker.clock.now();
        let end = match end {
            AdvanceEnd::By(time) => start.after(time),
            AdvanceEnd::To(end) if end < start => return Err(AdvanceError::Past { now: start }),
            AdvanceEnd::To(end) => end,
        };
        let _running = RunAgain { broker, speed: broker.clock.speed() };
        broker.clock.set_speed(None);
        let mut unsettled = HashSet::new();
        let mut settled = settle(broker, wait, &mut unsettled).await?;
        let fires_before = settled.fires;
        // An alarm that is created during the advance is evaluated after it.
        let mut evaluate_at = match alarms.evaluate(broker).await {
            0 => None,
            _ => Some(start.after(EVALUATE_EVERY)),
        };
        loop {
            let now = broker.clock.now();
            if evaluate_at.is_some_and(|at| at <= now || end <= now) {
                alarms.evaluate(broker).await;
                settled = settle(broker, wait, &mut unsettled).await?;
                evaluate_at = Some(now.after(EVALUATE_EVERY));
            }
            if now >= end {
                let fires = settled.fires.saturating_sub(fires_before);
                return Ok(Advanced { now, fires, unsettled: unsettled.len() });
            }
            let next = [settled.next_due, evaluate_at].into_iter().flatten().min();
            let next = next.unwrap_or(end).max(now.after(Duration::from_millis(1)));
            broker.clock.move_to(next.min(end));
            settled = settle(broker, wait, &mut unsettled).await?;
        }
    }

    /// Lets the clock run, or freezes it, after an advance that is in progress.
    pub(crate) async fn set_speed(&self, broker: &Broker, speed: Option<Speed>) {
        let _turn = self.evaluator.turn().await;
        change_speed(broker, speed);
    }
}

fn change_speed(broker: &Broker, speed: Option<Speed>) {
    broker.clock.set_speed(speed);
    // Owners that wait for an instant learn that it is now at another distance.
    broker.owners.handles().iter().for_each(|(_, owner)| drop(owner.when_idle()));
}

/// Lets the clock run again at the end of an advance, or when its caller goes away.
struct RunAgain<'a> {
    broker: &'a Broker,
    speed: Option<Speed>,
}

impl Drop for RunAgain<'_> {
    fn drop(&mut self) {
        if self.speed.is_some() {
            change_speed(self.broker, self.speed);
        }
    }
}

/// Waits until everything that is due at the present time has been delivered and settled. A
/// delivery that its worker does not settle within `wait` is added to `unsettled`, and not waited
/// for again.
async fn settle(
    broker: &Broker,
    wait: Duration,
    unsettled: &mut HashSet<LeaseToken>,
) -> Result<SettledInstant, EngineError> {
    let mut wait_over = Box::pin(timeout(wait, pending::<()>()));
    let mut is_over = wait.is_zero();
    loop {
        let lease_ends = broker.hub.lease_ends();
        broker.hub.expire();
        let reports = when_idle(broker).await?;
        let backlog = broker.hub.backlog();
        let in_flight: usize = reports.iter().map(|report| report.in_flight_to_queues).sum();
        if in_flight > backlog.waiting + backlog.leased.len() {
            // A delivery or a report is between the owner and the hub: the next answer of the owner
            // comes after it.
            continue;
        }
        let held: Vec<_> =
            backlog.leased.into_iter().filter(|token| !unsettled.contains(token)).collect();
        if is_over || (held.is_empty() && !is_awaited(broker).await?) {
            unsettled.extend(held);
            let due = reports.iter().filter_map(|report| report.next_due);
            return Ok(SettledInstant {
                fires: reports.iter().map(|report| report.fires).sum(),
                next_due: due.chain(backlog.next_lease_end).min(),
            });
        }
        tokio::select! {
            _ = timeout(CHECK_EVERY, lease_ends) => {}
            _ = &mut wait_over => is_over = true,
        }
    }
}

/// Whether a delivery waits for a worker that polls or is about to poll again.
async fn is_awaited(broker: &Broker) -> Result<bool, EngineError> {
    for (namespace, queue) in broker.hub.polled_lines() {
        let query = LaneQuery::Lane(LaneTarget::Queue(queue));
        for (_, owner) in broker.owners.handles() {
            let view = owner.view(namespace.clone(), query.clone()).await?;
            let waits = |lane: &LaneView| lane.oldest_overdue.is_some();
            if view.lanes.iter().any(waits) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Waits until all owners are idle. Fails if a partition has no owner.
async fn when_idle(broker: &Broker) -> Result<Vec<IdleReport>, EngineError> {
    let owners = broker.owners.handles();
    if owners.len() < usize::from(broker.owners.partitions().count()) {
        return Err(EngineError::Stopped);
    }
    // All messages are sent before the first answer is awaited.
    let answers: Vec<_> = owners.iter().map(|(_, owner)| owner.when_idle()).collect();
    let mut reports = Vec::with_capacity(answers.len());
    for answer in answers {
        reports.push(answer.await?);
    }
    Ok(reports)
}
