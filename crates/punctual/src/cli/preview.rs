//! `punctual preview`: when a cron expression fires next.
//!
//! The same answer as the API's, and without a broker: the calculation and the time zone data are in this binary.

use punctual_server::preview::offline;
use serde_json::Value;

use super::show;

#[derive(Debug, clap::Args)]
pub(crate) struct Preview {
    /// Five fields, six with seconds first, seven with years last; or @daily and the like.
    expression: String,
    /// The time zone of the expression, by its IANA name; UTC unless given.
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// So many fires: 1 to 100.
    #[arg(long, default_value = "5")]
    count: String,
    /// After this time: RFC 3339, or milliseconds since 1970; now unless given.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// For a local time that the clocks leap over: after or skip.
    #[arg(long, value_name = "WHEN")]
    dst_gap: Option<String>,
    /// For a local time that the clocks show twice: once or both.
    #[arg(long, value_name = "WHEN")]
    dst_overlap: Option<String>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

impl Preview {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let asked = [
            ("cron", Some(&self.expression)),
            ("timezone", self.timezone.as_ref()),
            ("count", Some(&self.count)),
            ("from", self.from.as_ref()),
            ("dst_gap", self.dst_gap.as_ref()),
            ("dst_overlap", self.dst_overlap.as_ref()),
        ];
        let asked = asked.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let preview =
            offline(asked.map(|(name, value)| (name.to_owned(), value.clone())).collect())?;
        show::line(&if self.json { preview.to_string() } else { table(&preview) })
    }
}

fn table(preview: &Value) -> String {
    let fires = &preview["fires"];
    let noted = fires.as_array().into_iter().flatten().any(|fire| fire["note"].is_string());
    let columns: &[&str] =
        if noted { &["local", "fire_at", "note"] } else { &["local", "fire_at"] };
    let data = preview["timezone_data"].as_str().unwrap_or_default();
    format!("{}\ntime zone data {data}", show::rows(fires, columns))
}
