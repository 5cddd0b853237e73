//! `punctual preview`: the next fire times of a cron expression.
//!
//! The result is that of `GET /v1/preview`, computed without a broker: the calculation and the time
//! zone data are in this binary.

use punctual_server::preview::offline;
use serde_json::Value;

use super::output;
use crate::error::Refusal;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual preview '0 9 * * MON-FRI' --timezone Europe/Berlin
  punctual preview @daily --count 3 --from 2030-01-01T00:00:00Z")]
pub(crate) struct PreviewArgs {
    /// Cron expression: five fields, six with seconds first, seven with years last; or @daily etc.
    expression: String,
    /// IANA name of the time zone of the expression; UTC if not given
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// How many fire times to show, 1 to 100
    #[arg(long, default_value = "5", value_name = "COUNT")]
    count: String,
    /// Start after this time: RFC 3339, or milliseconds since 1970; now if not given
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// What to do about a local time that does not exist when clocks go forward: after or skip
    #[arg(long, value_name = "WHEN")]
    dst_gap: Option<String>,
    /// What to do about a local time that exists twice when clocks go back: once or both
    #[arg(long, value_name = "WHEN")]
    dst_overlap: Option<String>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

impl PreviewArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let query = [
            ("cron", Some(&self.expression)),
            ("timezone", self.timezone.as_ref()),
            ("count", Some(&self.count)),
            ("from", self.from.as_ref()),
            ("dst_gap", self.dst_gap.as_ref()),
            ("dst_overlap", self.dst_overlap.as_ref()),
        ];
        let query = query.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let preview =
            offline(query.map(|(name, value)| (name.to_owned(), value.clone())).collect());
        // As the broker would refuse it.
        let preview = preview.map_err(|error| {
            Refusal::new(error.status(), Some(error.problem().clone()), error.to_string())
        })?;
        output::print_line(&if self.json { preview.to_string() } else { table(&preview) })
    }
}

fn table(preview: &Value) -> String {
    let fires = &preview["fires"];
    let noted = fires.as_array().into_iter().flatten().any(|fire| fire["note"].is_string());
    let columns: &[&str] =
        if noted { &["local", "fire_at", "note"] } else { &["local", "fire_at"] };
    let data = preview["timezone_data"].as_str().unwrap_or_default();
    format!("{}\ntime zone data {data}", output::rows(fires, columns))
}
