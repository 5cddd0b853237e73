//! Alarms over HTTP: `/v1/{namespace}/alarms`. `api/alarms` does the work.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{ALARMS_MAX, AlarmName, AlarmState, AlarmValue, format_duration};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::request::{self, BODY_BYTES_MAX, JsonBody, PathName, PathNamespace, QueryParams};
use super::response::{self, ApiResult, DELETED, Deleted};
use crate::alarms::notice::NoticeKind;
use crate::alarms::rule_form::{AlarmRepeat, AlarmRuleBody, ConditionBody, ReceiverBody};
use crate::alarms::value_form::share;
use crate::api::alarms::{
    AlarmView, NoticeState, NoticeView, PutView, delete_alarm, list_alarms, put_alarm, show_alarm,
    test_alarm,
};
use crate::broker::Broker;
use crate::fire_form::{ReasonText, ResponseAnswer};
use crate::schema::{AlarmNameText, array, documented, one_of, reference};
use crate::task_form::InstantText;

/// The alarms of a namespace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Alarms)]
struct AlarmsAnswer<'a> {
    /// By name.
    #[schema(value_type = AlarmArray)]
    alarms: Vec<AlarmAnswer<'a>>,
}

/// An alarm.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Alarm)]
struct AlarmAnswer<'a> {
    /// The name, unique in the namespace.
    #[schema(value_type = AlarmNameText)]
    name: &'a str,
    /// When the alarm is raised.
    when: ConditionBody,
    /// Where its notices go. The secret of a chat robot is never shown.
    to: ReceiverBody,
    /// After how long a raised alarm is reported again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AlarmRepeat>)]
    repeat_after: Option<String>,
    /// Whether the condition holds.
    #[schema(value_type = AlarmStateName)]
    state: &'static str,
    /// Since when the alarm is in this state.
    #[schema(value_type = InstantText)]
    since: String,
    /// What is measured now: a number of attempts or dead letters, a share of attempts, or a
    /// duration. `null` if it cannot be measured now.
    #[schema(value_type = AlarmValueJson)]
    value: Option<ValueAnswer>,
    /// How many notices the alarm has sent, tests not included.
    notices: u64,
    /// The last notice, tests included; `null` if there was none, or if it is no longer kept.
    last_notice: Option<NoticeAnswer<'a>>,
}

/// The value of an alarm.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ValueAnswer {
    Count(u64),
    Share(f64),
    Time(String),
}

/// A notice of an alarm.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AlarmNotice)]
struct NoticeAnswer<'a> {
    /// When it was sent first.
    #[schema(value_type = InstantText)]
    at: String,
    /// Why it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<NoticeKindName>)]
    kind: Option<&'static str>,
    #[serde(flatten)]
    outcome: OutcomeAnswer<'a>,
}

/// What became of a notice.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AlarmTest)]
struct OutcomeAnswer<'a> {
    /// `done`: the receiver has it. `failed`: no further attempt is made. `waiting`: neither.
    #[schema(value_type = NoticeStateName)]
    state: &'static str,
    /// Why the last attempt was not a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ReasonText>)]
    reason: Option<&'a str>,
    /// What the receiver answered last, if it is a webhook or a chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<ResponseAnswer<'a>>,
}

documented!(
    /// The states of an alarm.
    AlarmStateName,
    "AlarmState",
    one_of([AlarmState::Ok, AlarmState::Raised].map(state_name))
);
documented!(
    /// The kinds of notices.
    NoticeKindName,
    "NoticeKind",
    one_of(NoticeKind::ALL.map(NoticeKind::label))
);
documented!(
    /// The states of a notice.
    NoticeStateName,
    "NoticeState",
    one_of([NoticeState::Waiting, NoticeState::Done, NoticeState::Failed].map(NoticeState::name))
);
documented!(
    /// What is measured for an alarm.
    AlarmValueJson,
    "AlarmValue",
    json!({"type": ["number", "string", "null"]})
);
documented!(
    /// All alarms of a namespace.
    AlarmArray,
    "AlarmArray",
    array(&reference::<AlarmAnswer<'static>>(), 0, ALARMS_MAX)
);

/// List alarms
///
/// Lists the alarms of a namespace by name, each with its present value.
#[utoipa::path(
    get, path = "/v1/{namespace}/alarms", tag = "alarms", operation_id = "list_alarms",
    responses((status = 200, description = "The alarms.", body = AlarmsAnswer))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let alarms = list_alarms(&broker, &namespace).await?;
    let alarms = alarms.iter().map(AlarmAnswer::of).collect();
    response::page(&AlarmsAnswer { alarms }, permit)
}

/// Create or replace an alarm
///
/// Creates an alarm with this name, or replaces the rule of the alarm that has it. The state of an
/// alarm stays when its rule is replaced; if the new condition does not hold, a raised alarm is
/// over with the next evaluation.
#[utoipa::path(
    put, path = "/v1/{namespace}/alarms/{name}", tag = "alarms", operation_id = "put_alarm",
    request_body = AlarmRuleBody,
    responses(
        (status = 201, description = "The alarm was created.", body = AlarmAnswer),
        (status = 200, description = "The rule was replaced.", body = AlarmAnswer),
    )
)]
pub(crate) async fn put(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, name): PathName,
    JsonBody(body): JsonBody<BODY_BYTES_MAX>,
) -> ApiResult {
    let name = AlarmName::new(&name)?;
    let body: AlarmRuleBody = request::json(&body, "the rule of an alarm")?;
    let rule = body.into_rule()?;
    let _permit = broker.limits.reads.acquire(&namespace).await?;
    match put_alarm(&broker, &namespace, &name, &rule).await? {
        PutView::Created(view) => response::created(&AlarmAnswer::of(&view)),
        PutView::Replaced(view) => response::ok(&AlarmAnswer::of(&view)),
    }
}

/// Show an alarm
///
/// Shows an alarm with its present value and what became of its last notice.
#[utoipa::path(
    get, path = "/v1/{namespace}/alarms/{name}", tag = "alarms", operation_id = "get_alarm",
    responses((status = 200, description = "The alarm.", body = AlarmAnswer))
)]
pub(crate) async fn show(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, name): PathName,
) -> ApiResult {
    let name = AlarmName::new(&name)?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let view = show_alarm(&broker, &namespace, &name).await?;
    response::page(&AlarmAnswer::of(&view), permit)
}

/// Delete an alarm
///
/// Deletes an alarm. If it is raised, no notice says that it is over.
#[utoipa::path(
    delete, path = "/v1/{namespace}/alarms/{name}", tag = "alarms", operation_id = "delete_alarm",
    responses((status = 200, description = "The alarm was deleted.", body = Deleted))
)]
pub(crate) async fn delete(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, name): PathName,
) -> ApiResult {
    delete_alarm(&broker, &namespace, &AlarmName::new(&name)?).await?;
    response::ok(&Deleted { result: DELETED })
}

/// Test an alarm
///
/// Sends a notice that says that it is a test, in one attempt, and waits up to 5 seconds for its
/// outcome. A notice that the receiver did not take is a success of this call, with the state
/// `failed`.
#[utoipa::path(
    post, path = "/v1/{namespace}/alarms/{name}/test", tag = "alarms", operation_id = "test_alarm",
    responses((status = 200, description = "What became of the notice.", body = OutcomeAnswer))
)]
pub(crate) async fn test(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, name): PathName,
) -> ApiResult {
    let _permit = broker.limits.streams.try_acquire(&namespace)?;
    let notice = test_alarm(&broker, &namespace, &AlarmName::new(&name)?).await?;
    response::ok(&OutcomeAnswer::of(&notice))
}

impl<'a> AlarmAnswer<'a> {
    fn of(view: &'a AlarmView) -> Self {
        let AlarmView { alarm, value, last_notice } = view;
        let AlarmRuleBody { when, to, repeat_after } = AlarmRuleBody::shown(&alarm.rule);
        Self {
            name: alarm.name.as_str(),
            when,
            to,
            repeat_after,
            state: state_name(alarm.status.state),
            since: alarm.status.since.to_string(),
            value: value.map(ValueAnswer::of),
            notices: alarm.status.notices,
            last_notice: last_notice.as_ref().map(NoticeAnswer::of),
        }
    }
}

impl ValueAnswer {
    fn of(value: AlarmValue) -> Self {
        match value {
            AlarmValue::Count(count) => Self::Count(count),
            AlarmValue::Share { failed, total } => Self::Share(share(failed, total)),
            AlarmValue::Time(time) => Self::Time(format_duration(time)),
        }
    }
}

impl<'a> NoticeAnswer<'a> {
    fn of(notice: &'a NoticeView) -> Self {
        Self {
            at: notice.at.to_string(),
            kind: notice.kind.map(NoticeKind::label),
            outcome: OutcomeAnswer::of(notice),
        }
    }
}

impl<'a> OutcomeAnswer<'a> {
    fn of(notice: &'a NoticeView) -> Self {
        Self {
            state: notice.state.name(),
            reason: notice.reason(),
            answer: notice.answer().map(ResponseAnswer::of),
        }
    }
}

const fn state_name(state: AlarmState) -> &'static str {
    match state {
        AlarmState::Ok => "ok",
        AlarmState::Raised => "raised",
    }
}
