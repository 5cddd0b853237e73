//! Rules: what a touch of a key without a task creates.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Namespace;
use crate::Error;
use crate::client::json::segment;
use crate::client::unary::RetryWhen;

/// A rule: a touch of a key with this prefix that has no task creates the watch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RuleInfo {
    /// How the keys begin. The longest prefix decides.
    pub prefix: String,
    /// The watch, as in the HTTP API.
    pub create: Value,
}

#[derive(Deserialize)]
struct RuleList {
    rules: Vec<RuleInfo>,
}

impl Namespace {
    /// Lists the rules of the namespace by prefix.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn rules(&self) -> Result<Vec<RuleInfo>, Error> {
        let path = format!("/v1/{}/rules", segment(&self.name));
        let call = self.client.unary();
        Ok(call.json::<RuleList>(RetryWhen::Always, "GET", &path, &Value::Null).await?.rules)
    }

    /// Creates a rule, or replaces the one with this prefix. `create` is a watch as in the HTTP
    /// API: `json!({"within": "48h", "target": {"queue": "silent"}})`.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 422 that names the field; any other [`Error`].
    pub async fn put_rule(&self, prefix: &str, create: &Value) -> Result<RuleInfo, Error> {
        let path = format!("/v1/{}/rules/{}", segment(&self.name), segment(prefix));
        self.client.unary().json(RetryWhen::Always, "PUT", &path, create).await
    }

    /// Deletes a rule. The watches that it has created stay. Returns whether there was one.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn delete_rule(&self, prefix: &str) -> Result<bool, Error> {
        let path = format!("/v1/{}/rules/{}", segment(&self.name), segment(prefix));
        let call = self.client.unary();
        let answer = call.json::<Value>(RetryWhen::IfNotSeen, "DELETE", &path, &Value::Null).await;
        Ok(super::reads::unless_not_found(answer)?.is_some())
    }
}
