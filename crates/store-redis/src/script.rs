//! Scripts: one per atomic step, each in a file with its keys, arguments and results at the top.
//!
//! Scripts, not functions: a function must be loaded into every server by somebody who may, is part of the data,
//! and a new version of it meets old brokers; a script travels with the broker that knows it. One that a server does
//! not know (restarted, failed over, flushed) is sent whole, once.

use std::sync::LazyLock;

use redis::Cmd;

use crate::batch::BatchArguments;

/// A script and its digest.
pub(crate) struct Script {
    source: &'static str,
    compiled: LazyLock<redis::Script>,
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)+) => {
        $(pub(crate) static $name: Script = {
            const SOURCE: &str = include_str!($file);
            Script { source: SOURCE, compiled: LazyLock::new(|| redis::Script::new(SOURCE)) }
        };)+
    };
}

scripts! {
    APPLY = "scripts/apply.lua";
    LOAD = "scripts/load.lua";
    GET = "scripts/get.lua";
    FIND = "scripts/find.lua";
    DEAD = "scripts/dead.lua";
    HISTORY = "scripts/history.lua";
    SWEEP = "scripts/sweep.lua";
    ACQUIRE = "scripts/acquire.lua";
    RENEW = "scripts/renew.lua";
    RELEASE = "scripts/release.lua";
    HEARTBEAT = "scripts/heartbeat.lua";
    PROPOSE = "scripts/propose.lua";
}

/// How a script is named in a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ScriptForm {
    /// By its digest: the server has seen it.
    Digest,
    /// Whole.
    Source,
}

/// One call of a script, which can be spelled in two ways.
pub(crate) struct ScriptCall<'a> {
    script: &'static Script,
    keys: Vec<&'a str>,
    args: Vec<Vec<u8>>,
    sections: Option<BatchArguments>,
}

impl<'a> ScriptCall<'a> {
    pub(crate) fn new(script: &'static Script, keys: impl IntoIterator<Item = &'a str>) -> Self {
        Self { script, keys: keys.into_iter().collect(), args: Vec::new(), sections: None }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.args.push(arg.as_ref().to_vec());
        self
    }

    pub(crate) fn number(self, number: impl Into<i128>) -> Self {
        self.arg(number.into().to_string())
    }

    pub(crate) fn sections(mut self, sections: BatchArguments) -> Self {
        self.sections = Some(sections);
        self
    }

    /// The key that says where it goes.
    pub(crate) fn key(&self) -> &'a str {
        self.keys[0]
    }

    pub(crate) fn command(&self, spelling: ScriptForm) -> Cmd {
        let (arguments, bytes) =
            self.sections.as_ref().map_or((0, 0), |all| (all.arguments(), all.bytes()));
        let mut command = Cmd::with_capacity(
            arguments + self.args.len() + 64,
            bytes + self.args.len() * 32 + 4096,
        );
        match spelling {
            ScriptForm::Digest => command.arg("EVALSHA").arg(self.script.compiled.get_hash()),
            ScriptForm::Source => command.arg("EVAL").arg(self.script.source),
        };
        command.arg(self.keys.len());
        for key in &self.keys {
            command.arg(*key);
        }
        for arg in &self.args {
            command.arg(arg.as_slice());
        }
        for section in self.sections.iter().flat_map(BatchArguments::all) {
            command.arg(section.len());
            for argument in section.arguments() {
                command.arg(argument);
            }
        }
        command
    }
}
