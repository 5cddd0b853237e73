//! `punctual whoami`: what the token grants, and which broker answers.

use serde_json::Value;

use super::broker::BrokerArgs;
use super::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual whoami --token \"$TOKEN\"")]
pub(crate) struct WhoAmIArgs {
    #[command(flatten)]
    broker: BrokerArgs,
}

impl WhoAmIArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        output::print(&self.broker, &self.broker.get("/v1/whoami")?, |answer| {
            let mut shown = answer.clone();
            shown["namespaces"] = granted(answer).into();
            output::fields(&shown)
        })
    }
}

/// The rights of each namespace, as they are configured: `shop:read+operate`.
fn granted(answer: &Value) -> String {
    let namespaces = answer["namespaces"].as_array().map_or(&[][..], Vec::as_slice);
    let one = |namespace: &Value| {
        let rights = namespace["rights"].as_array().map_or(&[][..], Vec::as_slice);
        let rights: Vec<&str> = rights.iter().filter_map(Value::as_str).collect();
        format!("{}:{}", namespace["name"].as_str().unwrap_or_default(), rights.join("+"))
    };
    match answer["admin"] == true {
        true => "all".to_owned(),
        false => namespaces.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}
