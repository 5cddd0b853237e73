//! Lists that come in pages: reads as many pages as it takes to show what the user asked for.

use anyhow::bail;
use serde_json::{Value, json};

use super::broker::{BrokerArgs, query};

/// Entries of one page, at most.
const PAGE_MAX: usize = 1000;

/// How much of a list to show.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PageArgs {
    /// How many entries to show at most
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    limit: usize,
    /// Continue after an earlier list, which printed this cursor
    #[arg(long)]
    cursor: Option<String>,
}

impl PageArgs {
    /// Reads pages of `path` with the filters of `pairs` until there are enough entries. Returns
    /// all of them under `name`, as one page.
    pub(super) fn read(
        &self,
        broker: &BrokerArgs,
        path: &str,
        name: &str,
        pairs: &[(&str, Option<&str>)],
    ) -> anyhow::Result<Value> {
        if self.limit == 0 {
            bail!("--limit must be at least 1");
        }
        let mut entries: Vec<Value> = Vec::new();
        let mut cursor = self.cursor.clone();
        loop {
            let limit = (self.limit - entries.len()).min(PAGE_MAX).to_string();
            let mut pairs = pairs.to_vec();
            pairs.extend([("limit", Some(limit.as_str())), ("cursor", cursor.as_deref())]);
            let page = broker.get(&format!("{path}{}", query(&pairs)))?;
            entries.extend(page[name].as_array().cloned().unwrap_or_default());
            cursor = page["next"].as_str().map(str::to_owned);
            if cursor.is_none() || entries.len() >= self.limit {
                return Ok(json!({ name: entries, "next": cursor }));
            }
        }
    }
}

/// Adds how to continue, if a list has more entries.
pub(super) fn with_cursor(table: String, name: &str, list: &Value) -> String {
    match list["next"].as_str() {
        Some(next) => format!("{table}\nmore {name} follow: --cursor {next}"),
        None => table,
    }
}
