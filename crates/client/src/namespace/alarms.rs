//! Calls about the alarms of a namespace.

use punctual_proto::v1;
use punctual_proto::v1::alarms_client::AlarmsClient;

use super::Namespace;
use super::reads::unless_not_found;
use crate::Error;
use crate::alarm::{AlarmInfo, NewAlarm, NoticeInfo};
use crate::brokers::channel::TrackedChannel;
use crate::client::unary::RetryWhen;
use crate::wire::alarm as wire;

/// The alarms of a namespace.
#[derive(Debug, Clone)]
pub struct Alarms(Namespace);

/// Sends a request by one method of the stub.
macro_rules! call {
    ($alarms:expr, $retry_when:expr, $method:ident, $request:expr) => {{
        let request = $request;
        let call = |channel: TrackedChannel| {
            let request = request.clone();
            async move { AlarmsClient::new(channel).$method(request).await }
        };
        $alarms.0.client.unary().call_channel($retry_when, call).await
    }};
}

impl Namespace {
    /// The alarms of the namespace.
    #[must_use]
    pub fn alarms(&self) -> Alarms {
        Alarms(self.clone())
    }
}

impl Alarms {
    /// Creates an alarm, or replaces the rule of the one with the same name.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 422 if the rule is not allowed, or if the namespace has as
    /// many alarms as it may have; any other [`Error`]. It is safe to put again.
    pub async fn put(&self, name: impl Into<String>, rule: NewAlarm) -> Result<AlarmInfo, Error> {
        let (namespace, name) = (self.0.name.to_string(), name.into());
        let request = v1::PutAlarmRequest { namespace, name, rule: Some(wire::sent_rule(rule)?) };
        let answer = call!(self, RetryWhen::Always, put, request)?;
        wire::alarm(answer.alarm.ok_or(Error::Answer("the answer to put has no alarm"))?)
    }

    /// Returns an alarm; `None` if there is none.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn get(&self, name: impl Into<String>) -> Result<Option<AlarmInfo>, Error> {
        let answer = call!(self, RetryWhen::Always, get, self.request(name));
        unless_not_found(answer)?.map(wire::alarm).transpose()
    }

    /// Lists the alarms by name.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn list(&self) -> Result<Vec<AlarmInfo>, Error> {
        let request = v1::AlarmsRequest { namespace: self.0.name.to_string() };
        let answer = call!(self, RetryWhen::Always, list, request)?;
        answer.alarms.into_iter().map(wire::alarm).collect()
    }

    /// Deletes an alarm. Returns whether there was one.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn delete(&self, name: impl Into<String>) -> Result<bool, Error> {
        let answer = call!(self, RetryWhen::IfNotSeen, delete, self.request(name));
        Ok(unless_not_found(answer)?.is_some())
    }

    /// Sends a notice that says that it is a test, in one attempt, and waits up to 5 seconds for
    /// its outcome.
    ///
    /// # Errors
    /// [`Error::Problem`] with status 404 if there is no such alarm; any other [`Error`]. After
    /// [`Error::Lost`] the notice may have been sent.
    pub async fn test(&self, name: impl Into<String>) -> Result<NoticeInfo, Error> {
        let answer = call!(self, RetryWhen::IfNotSeen, test, self.request(name))?;
        wire::notice(answer)
    }

    fn request(&self, name: impl Into<String>) -> v1::AlarmRequest {
        v1::AlarmRequest { namespace: self.0.name.to_string(), name: name.into() }
    }
}
