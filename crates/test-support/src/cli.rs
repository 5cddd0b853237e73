//! The commands of the real binary, as a user runs them against a broker.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use crate::broker::punctual_binary;

/// A command that has ended.
#[derive(Debug)]
pub struct FinishedCommand {
    pub success: bool,
    pub printed: String,
    pub errors: String,
}

impl FinishedCommand {
    /// Runs `punctual` with arguments against the broker at an address.
    pub fn run(broker: SocketAddr, args: &[&str]) -> Self {
        let output = Command::new(punctual_binary())
            .args(args)
            .env("PUNCTUAL_BROKER", format!("http://{broker}"))
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (printed, errors) = (text(output.stdout), text(output.stderr));
        Self { success: output.status.success(), printed, errors }
    }

    /// Runs a command that must succeed. Returns what it prints.
    pub fn text(broker: SocketAddr, args: &[&str]) -> String {
        let command = Self::run(broker, args);
        assert!(command.success, "{args:?}: {}", command.errors);
        command.printed
    }

    /// Runs a command with `--json` that must succeed.
    pub fn json(broker: SocketAddr, args: &[&str]) -> Value {
        let printed = Self::text(broker, &[args, &["--json"]].concat());
        serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{args:?} printed {printed}"))
    }
}
