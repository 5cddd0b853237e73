//! The request of `punctual schedule`: the flags as the JSON object that the API takes.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::ScheduleArgs;
use super::pairs::object;
use super::payload::PayloadInput;
use crate::cli::tasks::time;

/// A task as JSON. A payload is sent byte for byte as the user gave it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct TaskRequest(BTreeMap<String, Box<RawValue>>);

impl TaskRequest {
    pub(super) fn set(
        &mut self,
        name: &str,
        value: &(impl Serialize + ?Sized),
    ) -> anyhow::Result<()> {
        let value = to_raw_value(value).with_context(|| format!("cannot encode {name}"))?;
        self.0.insert(name.to_owned(), value);
        Ok(())
    }
}

impl ScheduleArgs {
    pub(super) fn body(&self, payload: &PayloadInput) -> anyhow::Result<TaskRequest> {
        let mut body = TaskRequest::default();
        let texts = [
            ("in", &self.r#in),
            ("cron", &self.cron),
            ("every", &self.every),
            ("within", &self.within),
            ("timezone", &self.series.timezone),
            ("misfire", &self.series.misfire),
            ("overlap", &self.series.overlap),
            ("jitter", &self.series.jitter),
            ("postpone_max", &self.watch.postpone_max),
            ("guarantee", &self.guarantee),
            ("timeout", &self.timeout),
            ("expires_after", &self.expires_after),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                body.set(name, value)?;
            }
        }
        let times = [
            ("at", &self.at),
            ("starts_at", &self.series.starts_at),
            ("ends_at", &self.series.ends_at),
        ];
        for (name, value) in times {
            if let Some(value) = value {
                body.set(name, &time(value))?;
            }
        }
        if let Some(count) = self.series.count {
            body.set("count", &count)?;
        }
        if self.watch.on_return {
            body.set("on_return", &true)?;
        }
        if let Some(dst) = self.dst() {
            body.set("dst", &dst)?;
        }
        if self.paused {
            body.set("paused", &true)?;
        }
        for (name, target) in self.target.members()? {
            body.set(name, &target)?;
        }
        payload.add_to(&mut body)?;
        if let Some(retry) = self.retry.body()? {
            body.set("retry", &retry)?;
        }
        if !self.labels.is_empty() {
            body.set("labels", &object("--label", &self.labels)?)?;
        }
        Ok(body)
    }

    fn dst(&self) -> Option<Value> {
        let dst = [("gap", &self.series.dst_gap), ("overlap", &self.series.dst_overlap)];
        let dst = dst.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let dst: Map<_, _> = dst.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        (!dst.is_empty()).then(|| dst.into())
    }
}
