//! Turns the JSON form of a task into a checked [`TaskToSchedule`].
//!
//! An [`Invalid`] names the wrong field by its path, like `retry.backoff.list`.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use punctual_core::{Callbacks, Guarantee, Invalid, Labels, Namespace, NewTask, Payload, TaskKey};

use super::body::{GuaranteeBody, TaskBody};
use super::payload::check_json;
use super::time::parse_duration_field;
use super::to_schedule::TaskToSchedule;

impl TaskBody<'_> {
    /// Checks every field. `key` is the key in the path; a different one in the body is refused.
    pub(crate) fn into_task(
        self,
        namespace: Namespace,
        key: Option<TaskKey>,
    ) -> Result<TaskToSchedule, Invalid> {
        let named = self.key.as_deref().map(TaskKey::new).transpose()?;
        if key.is_some() && named.is_some() && key != named {
            return Err(Invalid::new("key", "must be left out or be the key in the path"));
        }
        let schedule = self.schedule()?;
        let payload = self.payload()?;
        let target = self.target.ok_or_else(|| Invalid::new("target", "must be given"))?;
        let mut task = NewTask::new(namespace, schedule, target.into_target("target")?);
        task.key = key.or(named);
        task.payload = payload;
        task.labels = Labels::new(self.labels.by_name("labels")?)?;
        if let Some(guarantee) = self.guarantee {
            task.guarantee = guarantee.into();
        }
        if let Some(retry) = self.retry {
            task.retry = retry.into_policy().map_err(|invalid| invalid.within("retry"))?;
        }
        if let Some(timeout) = &self.timeout {
            task.timeout = parse_duration_field("timeout", timeout)?;
        }
        if let Some(after) = &self.expires_after {
            task.expires_after = Some(parse_duration_field("expires_after", after)?);
        }
        let on_done = self.on_done.map(|target| target.into_target("on_done")).transpose()?;
        let on_dead = self.on_dead.map(|target| target.into_target("on_dead")).transpose()?;
        task.callbacks = Callbacks::new(on_done, on_dead);
        task.check()?;
        Ok(TaskToSchedule::new(task, self.paused))
    }

    fn payload(&self) -> Result<Payload, Invalid> {
        match (self.payload, &self.payload_base64, &self.content_type) {
            (None, None, None) => Ok(Payload::Empty),
            (Some(json), None, None) => {
                check_json(json.get())?;
                Ok(Payload::Json(Bytes::copy_from_slice(json.get().as_bytes())))
            }
            (None, Some(text), content_type) => {
                let bytes = STANDARD
                    .decode(text)
                    .map_err(|_| Invalid::new("payload_base64", "must be base64 with padding"))?;
                let content_type = content_type.as_deref().unwrap_or("application/octet-stream");
                Ok(Payload::Binary { bytes: bytes.into(), content_type: Arc::from(content_type) })
            }
            (Some(_), Some(_), _) => {
                Err(Invalid::new("payload_base64", "must not be given together with `payload`"))
            }
            (_, None, Some(_)) => {
                Err(Invalid::new("content_type", "must be given with `payload_base64` only"))
            }
        }
    }
}

impl From<GuaranteeBody> for Guarantee {
    fn from(body: GuaranteeBody) -> Self {
        match body {
            GuaranteeBody::AtMostOnce => Self::AtMostOnce,
            GuaranteeBody::AtLeastOnce => Self::AtLeastOnce,
            GuaranteeBody::ExactlyOnce => Self::ExactlyOnce,
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_engine::StartState;

    use super::*;

    #[test]
    fn a_task_starts_paused_only_if_the_caller_says_so() {
        for (more, start) in [
            ("", StartState::Scheduled),
            (r#", "paused": null"#, StartState::Scheduled),
            (r#", "paused": false"#, StartState::Scheduled),
            (r#", "paused": true"#, StartState::Paused),
        ] {
            let text = format!(r#"{{"in": "1h", "target": {{"queue": "q"}}{more}}}"#);
            let body: TaskBody<'_> = serde_json::from_str(&text).unwrap();
            let task = body.into_task(Namespace::new("shop").unwrap(), None).unwrap();
            assert_eq!(task.start, start, "{text}");
        }
    }
}
