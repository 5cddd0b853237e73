//! Scripts: one per atomic step, each in a file with its keys, arguments and results at the top.
//! Functions that several scripts need are in a file of their own, which is sent in front of them.
//!
//! The store uses scripts instead of Redis functions. A function has to be loaded into every server
//! by a user with that right, is part of the data, and is shared by brokers of different versions;
//! a script is sent by the broker that uses it. If a server does not have a script (it restarted,
//! failed over or was flushed), the broker sends the source.

use std::sync::LazyLock;

use redis::Cmd;

use crate::batch::{ArgumentList, BatchArguments};

/// A script and its digest.
pub(crate) struct Script {
    source: &'static str,
    compiled: LazyLock<redis::Script>,
}

macro_rules! scripts {
    ($($name:ident = $($file:literal)+;)+) => {
        $(pub(crate) static $name: Script = {
            const SOURCE: &str = concat!($(include_str!($file)),+);
            Script { source: SOURCE, compiled: LazyLock::new(|| redis::Script::new(SOURCE)) }
        };)+
    };
}

scripts! {
    APPLY = "../scripts/letter_groups.lua" "../scripts/apply.lua";
    LOAD = "../scripts/load.lua";
    GET = "../scripts/get.lua";
    FIND = "../scripts/find.lua";
    DEAD = "../scripts/dead.lua";
    HISTORY = "../scripts/history.lua";
    LAST = "../scripts/last.lua";
    SWEEP = "../scripts/letter_groups.lua" "../scripts/sweep.lua";
    DUE = "../scripts/due.lua";
    HOURS = "../scripts/hours.lua";
    FOLD = "../scripts/fold.lua";
    FILL = "../scripts/letter_groups.lua" "../scripts/fill.lua";
    READ_GROUPS = "../scripts/read_groups.lua";
    ACQUIRE = "../scripts/acquire.lua";
    RENEW = "../scripts/renew.lua";
    RELEASE = "../scripts/release.lua";
    HEARTBEAT = "../scripts/heartbeat.lua";
    PROPOSE = "../scripts/propose.lua";
}

/// How a command refers to a script.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ScriptForm {
    /// By its digest: the server has it.
    Digest,
    /// By its source.
    Source,
}

/// One call of a script, which can be sent by digest or by source.
pub(crate) struct ScriptCall<'a> {
    script: &'static Script,
    keys: Vec<&'a str>,
    args: Vec<Vec<u8>>,
    batch: Option<BatchArguments>,
}

impl<'a> ScriptCall<'a> {
    pub(crate) fn new(script: &'static Script, keys: impl IntoIterator<Item = &'a str>) -> Self {
        Self { script, keys: keys.into_iter().collect(), args: Vec::new(), batch: None }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.args.push(arg.as_ref().to_vec());
        self
    }

    pub(crate) fn number(self, number: impl Into<i128>) -> Self {
        self.arg(number.into().to_string())
    }

    /// Adds the number of arguments of a list, and these.
    pub(crate) fn list(mut self, list: &ArgumentList) -> Self {
        self = self.number(list.len() as u64);
        self.args.extend(list.arguments().map(<[u8]>::to_vec));
        self
    }

    pub(crate) fn batch(mut self, batch: BatchArguments) -> Self {
        self.batch = Some(batch);
        self
    }

    /// Returns the key that decides which server of a Cluster runs the call.
    pub(crate) fn key(&self) -> &'a str {
        self.keys[0]
    }

    pub(crate) fn command(&self, form: ScriptForm) -> Cmd {
        let (arguments, bytes) =
            self.batch.as_ref().map_or((0, 0), |all| (all.count(), all.bytes()));
        let mut command = Cmd::with_capacity(
            arguments + self.args.len() + 64,
            bytes + self.args.len() * 32 + 4096,
        );
        match form {
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
        for section in self.batch.iter().flat_map(BatchArguments::sections) {
            command.arg(section.len());
            for argument in section.arguments() {
                command.arg(argument);
            }
        }
        command
    }
}
