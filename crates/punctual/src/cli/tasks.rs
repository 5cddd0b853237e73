//! `punctual cancel`, `touch`, `show`, `list`, `pause`, `resume`, `fire`, `history`: what is done with tasks that are there.

use anyhow::bail;
use serde_json::{Value, json};

use super::broker::{Broker, part, query};
use super::show;

/// One task.
#[derive(Debug, clap::Args)]
pub(crate) struct One {
    namespace: String,
    /// The key of the task, or its id.
    task: String,
    #[command(flatten)]
    broker: Broker,
}

impl One {
    pub(super) fn show(&self) -> anyhow::Result<()> {
        let task = self.broker.get(&self.path(""))?;
        show::answer(&self.broker, &task, show::task)
    }

    pub(super) fn change(&self, verb: &str) -> anyhow::Result<()> {
        let task = self.broker.post(&self.path(&format!("/{verb}")), &json!({}))?;
        show::answer(&self.broker, &task, show::task)
    }

    pub(super) fn history(&self) -> anyhow::Result<()> {
        let fires = self.broker.get(&self.path("/fires"))?;
        show::answer(&self.broker, &fires, |answer| {
            let mut rows = Vec::new();
            for fire in answer["fires"].as_array().into_iter().flatten() {
                let attempts = fire["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
                let whole = json!({"fire_at": fire["fire_at"], "end": fire["end"], "lag_ms": fire["lag_ms"]});
                if attempts.is_empty() {
                    let mut row = whole.clone();
                    row["answer"] = skipped(&fire["skipped"]);
                    rows.push(row);
                }
                for attempt in attempts {
                    let mut row = whole.clone();
                    for name in ["attempt", "fired_at", "outcome", "answer"] {
                        row[name] = attempt[name].clone();
                    }
                    rows.push(row);
                }
            }
            let columns = ["fire_at", "end", "lag_ms", "attempt", "fired_at", "outcome", "answer"];
            show::rows(&rows.into(), &columns)
        })
    }

    fn path(&self, verb: &str) -> String {
        format!("/v1/{}/tasks/{}{verb}", part(&self.namespace), part(&self.task))
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Cancel {
    namespace: String,
    /// The key of the task, or its id. May be several keys.
    #[arg(required = true)]
    tasks: Vec<String>,
    #[command(flatten)]
    broker: Broker,
}

impl Cancel {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let namespace = part(&self.namespace);
        if let [task] = self.tasks.as_slice() {
            let path = format!("/v1/{namespace}/tasks/{}", part(task));
            let answer = self.broker.delete(&path)?;
            return show::answer(&self.broker, &answer, show::fields);
        }
        let body = json!({ "keys": self.tasks });
        let answer = self.broker.post(&format!("/v1/{namespace}/cancel"), &body)?;
        show::answer(&self.broker, &answer, |answer| {
            show::rows(
                &answer["results"],
                &["key", "result", "attempt", "fired_at", "problem.detail"],
            )
        })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Touch {
    namespace: String,
    /// The key of the task, or its id.
    task: String,
    /// To so long from now.
    #[arg(long = "in", id = "in", value_name = "DURATION", conflicts_with = "at")]
    r#in: Option<String>,
    /// To this time: RFC 3339, or milliseconds since 1970.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// A watch by so much, this once, instead of its own time.
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["in", "at"])]
    within: Option<String>,
    #[command(flatten)]
    broker: Broker,
}

impl Touch {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let body = match (&self.r#in, &self.at, &self.within) {
            (Some(delay), ..) => json!({ "in": delay }),
            (_, Some(at), _) => json!({ "at": time(at) }),
            (.., Some(within)) => json!({ "within": within }),
            (None, None, None) => json!({}),
        };
        let path = format!("/v1/{}/tasks/{}/touch", part(&self.namespace), part(&self.task));
        let task = self.broker.post(&path, &body)?;
        show::answer(&self.broker, &task, show::task)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    namespace: String,
    /// scheduled, firing, paused, done or dead; all that live unless given.
    #[arg(long)]
    state: Option<String>,
    /// The beginning of the key.
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// NAME:VALUE.
    #[arg(long)]
    label: Option<String>,
    /// Due at this time or later.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Due before this time.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// So many at most.
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Go on where an earlier list ended.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    broker: Broker,
}

impl List {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        if self.limit == 0 {
            bail!("--limit must be at least 1");
        }
        let mut tasks: Vec<Value> = Vec::new();
        let mut cursor = self.cursor.clone();
        loop {
            let limit = (self.limit - tasks.len()).min(1000).to_string();
            let query = query(&[
                ("state", self.state.as_deref()),
                ("key_prefix", self.key_prefix.as_deref()),
                ("label", self.label.as_deref()),
                ("from", self.from.as_deref()),
                ("to", self.to.as_deref()),
                ("limit", Some(&limit)),
                ("cursor", cursor.as_deref()),
            ]);
            let page = self.broker.get(&format!("/v1/{}/tasks{query}", part(&self.namespace)))?;
            tasks.extend(page["tasks"].as_array().cloned().unwrap_or_default());
            cursor = page["next"].as_str().map(str::to_owned);
            if cursor.is_none() || tasks.len() >= self.limit {
                break;
            }
        }
        let answer = json!({ "tasks": tasks, "next": cursor });
        show::answer(&self.broker, &answer, |answer| {
            let columns =
                ["fire_at", "state", "key", "schedule", "id", "version", "attempt", "target"];
            let mut tasks = answer["tasks"].clone();
            for task in tasks.as_array_mut().into_iter().flatten() {
                task["schedule"] = json!(show::schedule(task));
            }
            let table = show::rows(&tasks, &columns);
            match answer["next"].as_str() {
                Some(next) => format!("{table}\nthere are more: --cursor {next}"),
                None => table,
            }
        })
    }
}

/// What a policy left out, in words.
fn skipped(skipped: &Value) -> Value {
    let (Some(fires), Some(until)) = (skipped["fires"].as_u64(), skipped["until"].as_str()) else {
        return Value::Null;
    };
    let reason = skipped["reason"].as_str().unwrap_or_default();
    match fires {
        1 => json!(format!("1 fire, {reason}")),
        _ => json!(format!("{fires} fires until {until}, {reason}")),
    }
}

/// A time as the API wants it: a number if it is one.
pub(super) fn time(text: &str) -> Value {
    text.parse::<i64>().map_or_else(|_| json!(text), |millis| json!(millis))
}
