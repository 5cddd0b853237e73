//! Rules for touches of keys that have no task: `/v1/{namespace}/rules`. `touch_rules` keeps them.

use std::sync::Arc;

use axum::extract::State;
use punctual_core::{Clock as _, Invalid, TaskKey};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::request::{self, JsonBody, PathName, PathNamespace, QueryParams};
use super::response::{self, ApiResult, DELETED, Deleted};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::schema::{KeyText, array, documented, reference};
use crate::task_form::{KeylessTask, TaskBody, check_fires};
use crate::touch_rules::{self, PutRule, RULE_BYTES_MAX, RULES_MAX};

/// The rules of a namespace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TouchRules)]
struct RulesAnswer<'a> {
    /// By prefix.
    #[schema(value_type = RuleArray)]
    rules: Vec<RuleAnswer<'a>>,
}

/// A rule: a touch of a key with this prefix that has no task creates the watch.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TouchRule)]
struct RuleAnswer<'a> {
    /// How the keys begin. The longest prefix decides.
    #[schema(value_type = KeyText)]
    prefix: &'a str,
    /// The watch, as it was sent.
    #[schema(value_type = KeylessTask)]
    create: &'a RawValue,
}

documented!(
    /// All rules of a namespace.
    RuleArray,
    "TouchRuleArray",
    array(&reference::<RuleAnswer<'static>>(), 0, RULES_MAX)
);

/// List rules
///
/// Lists the rules of a namespace by prefix.
#[utoipa::path(
    get, path = "/v1/{namespace}/rules", tag = "rules", operation_id = "list_rules",
    responses((status = 200, description = "The rules.", body = RulesAnswer))
)]
pub(crate) async fn list(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    params: QueryParams,
) -> ApiResult {
    params.end()?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let rules = touch_rules::list(&broker, &namespace).await?;
    let rules = rules.iter().map(|(prefix, create)| RuleAnswer { prefix, create }).collect();
    response::page(&RulesAnswer { rules }, permit)
}

/// Create or replace a rule
///
/// From now on, a touch of a key that begins with this prefix and has no task creates this watch,
/// unless the touch says what to create. The longest prefix decides. Watches that exist stay as
/// they are.
#[utoipa::path(
    put, path = "/v1/{namespace}/rules/{prefix}", tag = "rules", operation_id = "put_rule",
    request_body = KeylessTask,
    responses(
        (status = 201, description = "The rule was created.", body = RuleAnswer),
        (status = 200, description = "The rule was replaced.", body = RuleAnswer),
    )
)]
pub(crate) async fn put(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, prefix): PathName,
    JsonBody(body): JsonBody<RULE_BYTES_MAX>,
) -> ApiResult {
    let prefix = parse_prefix(&prefix)?;
    let create: &RawValue = request::json(&body, "a watch")?;
    let watch: TaskBody<'_> = request::json(&body, "a watch")?;
    let watch = touch_rules::check(watch, &namespace)?.new_task;
    check_fires(&watch.schedule, broker.clock.now())?;
    broker.guard.check_targets(&watch)?;
    let _permit = broker.limits.reads.acquire(&namespace).await?;
    let rule = RuleAnswer { prefix: prefix.as_str(), create };
    match touch_rules::put(&broker, &namespace, &prefix, create).await? {
        PutRule::Created => response::created(&rule),
        PutRule::Replaced => response::ok(&rule),
    }
}

/// Delete a rule
///
/// Deletes a rule. The watches that it has created stay.
#[utoipa::path(
    delete, path = "/v1/{namespace}/rules/{prefix}", tag = "rules", operation_id = "delete_rule",
    responses((status = 200, description = "The rule was deleted.", body = Deleted))
)]
pub(crate) async fn delete(
    State(broker): State<Arc<Broker>>,
    PathName(namespace, prefix): PathName,
) -> ApiResult {
    let prefix = parse_prefix(&prefix)?;
    match touch_rules::remove(&broker, &namespace, prefix.as_str()).await? {
        true => response::ok(&Deleted { result: DELETED }),
        false => Err(Problem::rule_not_found(&namespace, prefix.as_str())),
    }
}

/// A prefix has the limits of a key.
fn parse_prefix(text: &str) -> Result<TaskKey, Invalid> {
    TaskKey::new(text).map_err(|invalid| Invalid::new("prefix", invalid.problem))
}
