//! The evaluation of all alarms, by the broker that owns the first partition.
//!
//! Each round lists the alarms, reads what was measured, and stores what has changed. A notice is
//! scheduled after the status that announces it was stored, in the same round or, if the broker
//! ends in between, in the first round of the next evaluator. An alarm that cannot be changed now
//! is tried again in the next round.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    AlarmState, AlarmStatus, Clock as _, NewTask, Notice, PartitionId, Reading, TaskKey,
};
use punctual_engine::{Condition, EngineError, Receipt, ScheduleCommand, StartState};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::measure::Measurer;
use super::notice::{NoticeFacts, NoticeKind, notice_task};
use super::stored::{self, StoredAlarm};
use crate::broker::Broker;

/// How often alarms are evaluated.
const EVERY: Duration = Duration::from_millis(500);
/// Alarms that are changed at the same time.
const CHANGES_MAX: usize = 64;

/// Evaluates the alarms, and remembers what was measured.
#[derive(Debug, Default)]
pub(crate) struct AlarmEvaluator {
    /// `None` while another broker owns the first partition. Locked by one evaluation at a time,
    /// and by the virtual clock while it moves.
    measurer: Mutex<Option<Measurer>>,
}

/// The right to evaluate the alarms: no other evaluation begins while it is held.
pub(crate) struct EvaluationTurn<'a>(MutexGuard<'a, Option<Measurer>>);

impl AlarmEvaluator {
    /// Evaluates the alarms every half second. Never returns.
    pub(crate) async fn watch(&self, broker: &Arc<Broker>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.turn().await.evaluate(broker).await;
        }
    }

    /// Waits until no other evaluation is in progress.
    pub(crate) async fn turn(&self) -> EvaluationTurn<'_> {
        EvaluationTurn(self.measurer.lock().await)
    }
}

impl EvaluationTurn<'_> {
    /// Evaluates the alarms if this broker owns the first partition. Returns how many there are.
    pub(crate) async fn evaluate(&mut self, broker: &Arc<Broker>) -> usize {
        if broker.owners.handle(PartitionId::FIRST).is_none() {
            *self.0 = None;
            broker.telemetry.alarms(0, 0);
            return 0;
        }
        let measurer = self.0.get_or_insert_with(|| Measurer::new(broker.clock.now()));
        evaluate_all(broker, measurer).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "alarms not evaluated");
            0
        })
    }
}

/// Returns how many alarms there are.
async fn evaluate_all(
    broker: &Arc<Broker>,
    measurer: &mut Measurer,
) -> Result<usize, punctual_store::StoreError> {
    let alarms = stored::list_all(broker).await?;
    let count = alarms.len();
    let readings = measurer.read(broker, &alarms).await;
    let raised = alarms.iter().filter(|alarm| alarm.status.state == AlarmState::Raised).count();
    broker.telemetry.alarms(alarms.len(), raised);
    let mut changes = JoinSet::new();
    for (alarm, reading) in alarms.into_iter().zip(readings) {
        if changes.len() >= CHANGES_MAX {
            changes.join_next().await;
        }
        if let Some(status) = decide(&alarm, reading, broker.clock.now()) {
            let broker = Arc::clone(broker);
            changes.spawn(async move {
                let (namespace, name) = (alarm.namespace.clone(), alarm.name.clone());
                if let Err(error) = change(&broker, alarm, status).await {
                    tracing::debug!(%namespace, %name, %error, "alarm not changed");
                }
            });
        }
    }
    while changes.join_next().await.is_some() {}
    Ok(count)
}

/// Returns the status with the notice to send: one that is pending, or a new one.
fn decide(
    alarm: &StoredAlarm,
    reading: Option<Reading>,
    now: punctual_core::Timestamp,
) -> Option<AlarmStatus> {
    if alarm.status.pending.is_some() {
        return Some(alarm.status);
    }
    alarm.rule.evaluate(alarm.status, reading?, now)
}

/// Stores the status, schedules its notice, and stores that the notice is scheduled.
async fn change(
    broker: &Broker,
    alarm: StoredAlarm,
    status: AlarmStatus,
) -> Result<(), EngineError> {
    let alarm = match alarm.status == status {
        true => alarm,
        false => {
            let stored = alarm.with_status(broker, status).await?;
            log_change(&stored);
            stored
        }
    };
    let Some(notice) = status.pending else { return Ok(()) };
    schedule_notice(broker, &alarm, notice).await?;
    alarm.with_status(broker, AlarmStatus { pending: None, ..status }).await?;
    Ok(())
}

fn log_change(alarm: &StoredAlarm) {
    let (namespace, name) = (&alarm.namespace, &alarm.name);
    match alarm.status.pending {
        Some(Notice::Raised) => tracing::warn!(%namespace, %name, "alarm raised"),
        Some(Notice::Repeated) => tracing::warn!(%namespace, %name, "alarm still raised"),
        Some(Notice::Over) => tracing::info!(%namespace, %name, "alarm over"),
        None => {}
    }
}

/// Schedules a notice. Repeating it creates nothing.
async fn schedule_notice(
    broker: &Broker,
    alarm: &StoredAlarm,
    notice: Notice,
) -> Result<(), EngineError> {
    let status = &alarm.status;
    let kind = match notice {
        Notice::Raised => NoticeKind::Raised,
        Notice::Repeated => NoticeKind::Repeated,
        Notice::Over => NoticeKind::Over,
    };
    let (key, digest) = (alarm.last_notice_key(), status.notices.to_string());
    let receipt = Some(Receipt { key: key.clone(), digest });
    match schedule(broker, alarm, kind, key, receipt).await {
        // The rule was changed after the notice was scheduled.
        Ok(_) | Err(EngineError::IdempotencyConflict) => {}
        Err(error) => return Err(error),
    }
    broker.telemetry.alarm_notice();
    Ok(())
}

/// Schedules a notice of an alarm, to be sent now. With a receipt, repeating it creates nothing.
/// Returns the id of its task.
async fn schedule(
    broker: &Broker,
    alarm: &StoredAlarm,
    kind: NoticeKind,
    key: TaskKey,
    receipt: Option<Receipt>,
) -> Result<punctual_core::TaskId, EngineError> {
    let facts = NoticeFacts { alarm, kind, value: alarm.status.value, now: broker.clock.now() };
    let mut new_task = NewTask { key: Some(key), ..notice_task(&facts) };
    if kind == NoticeKind::Test {
        // The caller waits for the outcome.
        new_task.retry.attempts_max = 1;
    }
    let new_task = Arc::new(new_task);
    let (condition, start) = (Condition::Always, StartState::Scheduled);
    let command = ScheduleCommand { new_task, condition, receipt, start };
    // The partition of the alarm, so that repeating finds the receipt.
    let owner = broker.owners.of(PartitionId::FIRST).ok_or(EngineError::Stopped)?;
    Ok(owner.schedule(command).await?.task().id)
}

/// Sends a notice that says that it is a test. Returns the id of its task.
pub(crate) async fn send_test(
    broker: &Broker,
    alarm: &StoredAlarm,
) -> Result<punctual_core::TaskId, EngineError> {
    schedule(broker, alarm, NoticeKind::Test, alarm.test_key(), None).await
}
