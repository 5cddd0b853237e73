//! Alarms for HTTP and gRPC: each with its present value and what became of its last notice.
//!
//! `alarms/stored` keeps alarms, `alarms/measure` measures, and notices are tasks of an internal
//! namespace. A new rule is checked here, after its form: its webhook must be allowed.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    AlarmName, AlarmReceiver, AlarmRule, AlarmValue, Answer, AttemptRecord, FireEnd, FireRecord,
    Invalid, Labels, Namespace, Outcome, PartitionId, Task, TaskId, Timestamp,
};
use punctual_store::{StoreError, TaskStore as _};
use tokio::time::{interval, timeout};

use crate::alarms::evaluate::send_test;
use crate::alarms::measure::present_values;
use crate::alarms::notice::{KIND_LABEL, NoticeKind};
use crate::alarms::stored::{self, PutAlarm, StoredAlarm};
use crate::broker::Broker;
use crate::problem::Problem;

/// How long a test waits for the outcome of its notice: half of the time that clients wait.
const TEST_WAIT_MAX: Duration = Duration::from_secs(5);
/// How often a test looks for the outcome.
const TEST_POLL_EVERY: Duration = Duration::from_millis(50);

/// An alarm as callers see it.
#[derive(Debug)]
pub(crate) struct AlarmView {
    pub(crate) alarm: StoredAlarm,
    /// `None` if it cannot be measured now.
    pub(crate) value: Option<AlarmValue>,
    /// `None` if there was none, or if it is past its retention.
    pub(crate) last_notice: Option<NoticeView>,
}

/// A notice, and what became of it.
#[derive(Debug, Clone)]
pub(crate) struct NoticeView {
    /// When it was sent first.
    pub(crate) at: Timestamp,
    /// `None` if a later version has written it.
    pub(crate) kind: Option<NoticeKind>,
    pub(crate) state: NoticeState,
    /// `None` if no attempt has ended.
    last_attempt: Option<AttemptRecord>,
}

/// What became of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoticeState {
    /// It is sent, or sent again after a failed attempt.
    Waiting,
    /// The receiver has it.
    Done,
    /// No further attempt is made.
    Failed,
}

/// What became of a rule that was put.
#[derive(Debug)]
pub(crate) enum PutView {
    Created(AlarmView),
    Replaced(AlarmView),
}

/// Lists the alarms of a namespace by name.
pub(crate) async fn list_alarms(
    broker: &Arc<Broker>,
    namespace: &Namespace,
) -> Result<Vec<AlarmView>, Problem> {
    let alarms = stored::list(broker, namespace).await?;
    view(broker, namespace, alarms).await
}

/// Returns one alarm.
pub(crate) async fn show_alarm(
    broker: &Arc<Broker>,
    namespace: &Namespace,
    name: &AlarmName,
) -> Result<AlarmView, Problem> {
    let alarm = stored_alarm(broker, namespace, name).await?;
    view_one(broker, alarm).await
}

/// Creates an alarm, or replaces its rule.
pub(crate) async fn put_alarm(
    broker: &Arc<Broker>,
    namespace: &Namespace,
    name: &AlarmName,
    rule: &AlarmRule,
) -> Result<PutView, Problem> {
    check_receiver(broker, &rule.to)?;
    match stored::put(broker, namespace, name, rule).await? {
        PutAlarm::Created(alarm) => Ok(PutView::Created(view_one(broker, alarm).await?)),
        PutAlarm::Replaced(alarm) => Ok(PutView::Replaced(view_one(broker, alarm).await?)),
    }
}

/// Deletes an alarm.
pub(crate) async fn delete_alarm(
    broker: &Broker,
    namespace: &Namespace,
    name: &AlarmName,
) -> Result<(), Problem> {
    match stored::remove(broker, namespace, name).await? {
        true => Ok(()),
        false => Err(Problem::alarm_not_found(namespace, name)),
    }
}

/// Sends a notice that says that it is a test, and waits for its outcome.
pub(crate) async fn test_alarm(
    broker: &Broker,
    namespace: &Namespace,
    name: &AlarmName,
) -> Result<NoticeView, Problem> {
    let alarm = stored_alarm(broker, namespace, name).await?;
    let id = send_test(broker, &alarm).await?;
    match timeout(TEST_WAIT_MAX, ended_notice(broker, id)).await {
        Ok(ended) => Ok(ended?),
        Err(_) => Ok(NoticeView {
            at: id.due(),
            kind: Some(NoticeKind::Test),
            state: NoticeState::Waiting,
            last_attempt: None,
        }),
    }
}

async fn stored_alarm(
    broker: &Broker,
    namespace: &Namespace,
    name: &AlarmName,
) -> Result<StoredAlarm, Problem> {
    let alarm = stored::get(broker, namespace, name).await?;
    alarm.ok_or_else(|| Problem::alarm_not_found(namespace, name))
}

/// Checks that the broker may call a webhook, or has a mail server.
fn check_receiver(broker: &Broker, receiver: &AlarmReceiver) -> Result<(), Invalid> {
    match receiver {
        AlarmReceiver::Http(webhook) => broker.guard.check_webhook("to.http.url", webhook),
        AlarmReceiver::Chat(robot) => broker.guard.check_webhook("to.chat.url", &robot.webhook),
        AlarmReceiver::Mail(_) if broker.sends_mail => Ok(()),
        AlarmReceiver::Mail(_) => {
            let problem = "is not possible: the broker has no mail server in its configuration";
            Err(Invalid::new("to.mail", problem))
        }
    }
}

async fn view_one(broker: &Arc<Broker>, alarm: StoredAlarm) -> Result<AlarmView, Problem> {
    let (namespace, name) = (alarm.namespace.clone(), alarm.name.clone());
    let view = view(broker, &namespace, vec![alarm]).await?.pop();
    view.ok_or_else(|| Problem::alarm_not_found(&namespace, &name))
}

/// The type of the future is erased, because those of several calls are nested in it.
fn view<'a>(
    broker: &'a Arc<Broker>,
    namespace: &'a Namespace,
    alarms: Vec<StoredAlarm>,
) -> Pin<Box<dyn Future<Output = Result<Vec<AlarmView>, Problem>> + Send + 'a>> {
    Box::pin(async move {
        let values = present_values(broker, &alarms).await;
        let mut notices = last_notices(broker, namespace, &alarms).await?;
        let view = |(alarm, value): (StoredAlarm, Option<AlarmValue>)| {
            let last_notice = notices.remove(alarm.name.as_str());
            AlarmView { alarm, value, last_notice }
        };
        Ok(alarms.into_iter().zip(values).map(view).collect())
    })
}

/// Returns the last notice or test of each alarm, by its name, living or ended.
async fn last_notices(
    broker: &Broker,
    namespace: &Namespace,
    alarms: &[StoredAlarm],
) -> Result<HashMap<String, NoticeView>, StoreError> {
    let (first, notices) = (PartitionId::FIRST, namespace.of_notices());
    let keys: Vec<_> =
        alarms.iter().flat_map(|alarm| [alarm.last_notice_key(), alarm.test_key()]).collect();
    let heads = broker.store.find(first, &notices, &keys).await?;
    let ids: Vec<_> = heads.iter().flatten().map(|head| head.id).collect();
    let mut living = broker.store.get(first, &ids).await?.into_iter();
    let ended = broker.store.last_fires(first, &notices, &keys).await?;
    let views = heads.iter().zip(ended).map(|(head, ended)| {
        let living = head.as_ref().and_then(|_| living.next().flatten());
        let living = living.as_ref().map(NoticeView::living);
        living.or_else(|| ended.as_ref().map(NoticeView::ended))
    });
    let views: Vec<Option<NoticeView>> = views.collect();
    let named = alarms.iter().zip(views.chunks(2)).filter_map(|(alarm, views)| {
        let newest = views.iter().flatten().max_by_key(|view| view.at)?;
        Some((alarm.name.to_string(), newest.clone()))
    });
    Ok(named.collect())
}

/// Waits until a notice has ended.
async fn ended_notice(broker: &Broker, id: TaskId) -> Result<NoticeView, StoreError> {
    let mut ticks = interval(TEST_POLL_EVERY);
    loop {
        ticks.tick().await;
        let records = broker.store.history(id.partition(), id, 1).await?;
        if let Some(record) = records.first() {
            return Ok(NoticeView::ended(record));
        }
    }
}

impl NoticeView {
    fn living(task: &Task) -> Self {
        Self {
            at: task.nominal_at,
            kind: kind_of(&task.definition.labels),
            state: NoticeState::Waiting,
            last_attempt: task.attempts.last().cloned(),
        }
    }

    fn ended(record: &FireRecord) -> Self {
        let state = match record.end {
            FireEnd::Done => NoticeState::Done,
            _ => NoticeState::Failed,
        };
        Self {
            at: record.fire_id.nominal_at,
            kind: kind_of(&record.labels),
            state,
            last_attempt: record.attempts.last().cloned(),
        }
    }

    /// Why the last attempt was not a success.
    pub(crate) fn reason(&self) -> Option<&str> {
        match &self.last_attempt.as_ref()?.outcome {
            Outcome::Failed { reason, .. } | Outcome::Refused { reason } => Some(reason.as_str()),
            Outcome::Acked | Outcome::Expired => None,
        }
    }

    /// What the receiver answered last.
    pub(crate) fn answer(&self) -> Option<&Answer> {
        let answer = self.last_attempt.as_ref()?.answer.as_deref();
        answer.filter(|answer| answer.status().is_some())
    }
}

fn kind_of(labels: &Labels) -> Option<NoticeKind> {
    labels.get(KIND_LABEL).and_then(NoticeKind::from_label)
}

impl NoticeState {
    /// The state in answers.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}
