//! `punctual lanes`: what waits for each target, what is in flight to it, and what has failed.

use serde_json::{Value, json};

use super::broker::{BrokerArgs, part};
use super::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual lanes shop")]
pub(crate) struct LanesArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl LanesArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let answer = self.broker.get(&format!("/v1/{}/lanes", part(&self.namespace)))?;
        output::print(&self.broker, &answer, |answer| {
            let lanes = answer["lanes"].as_array().into_iter().flatten().map(row).collect();
            let columns = [
                "target",
                "state",
                "since_at",
                "waiting",
                "in_flight",
                "capacity",
                "oldest_overdue_ms",
                "failed",
                "last_failure",
            ];
            let rows = output::rows(&Value::Array(lanes), &columns);
            match answer["complete"] == true {
                true => rows,
                false => format!("{rows}\nThere are more, with fewer waiting tasks."),
            }
        })
    }
}

/// A lane as a row of the table.
fn row(lane: &Value) -> Value {
    let mut row = lane.clone();
    let sign = if lane["more"] == true { "+" } else { "" };
    row["waiting"] = json!(format!("{}{sign}", lane["waiting"]));
    row["since_at"] = row["since"].take();
    let failure = &lane["last_failure"];
    let pause = failure["retry_at"].as_str().map(|at| format!(" (retry after {at})"));
    let reason = failure["reason"].as_str().unwrap_or_default();
    row["last_failure"] = json!(format!("{reason}{}", pause.unwrap_or_default()));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_last_failure_as_text() {
        let lane = json!({"waiting": 3, "more": true, "last_failure": {"reason": "status 503"}});
        assert_eq!(row(&lane)["waiting"], "3+");
        assert_eq!(row(&lane)["last_failure"], "status 503");
        let asked = json!({"waiting": 3, "since": "2027-01-01T00:00:00Z",
            "last_failure": {"reason": "status 503", "retry_at": "2027-01-01T00:00:09Z"}});
        assert_eq!(row(&asked)["since_at"], "2027-01-01T00:00:00Z");
        assert_eq!(row(&asked)["last_failure"], "status 503 (retry after 2027-01-01T00:00:09Z)");
        assert_eq!(row(&json!({"waiting": 0}))["last_failure"], "");
    }
}
