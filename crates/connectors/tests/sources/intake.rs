//! The intake of the tests: a broker that keeps what it has applied.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use punctual_connectors::{Applied, DynFuture, Intake, SourceCommand};

/// What an intake has applied, and what it refuses.
#[derive(Debug, Default)]
pub(crate) struct IntakeRecord {
    /// In order, without those that were given again.
    pub(crate) applied: Vec<SourceCommand>,
    ids: HashSet<String>,
    /// Commands that were given.
    pub(crate) given: usize,
    /// Calls that were made.
    pub(crate) calls: usize,
    pub(crate) refuses: IntakeRefusal,
    /// Applies, and never answers: as if the broker was killed then.
    pub(crate) dies: bool,
}

/// What an intake refuses.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum IntakeRefusal {
    #[default]
    Nothing,
    Everything,
    Key(String),
}

/// The intake of all readers of a test.
#[derive(Debug, Clone, Default)]
pub(crate) struct TestIntake(pub(crate) Arc<Mutex<IntakeRecord>>);

impl TestIntake {
    pub(crate) fn refuse(&self, refuses: IntakeRefusal) {
        self.0.lock().unwrap().refuses = refuses;
    }

    pub(crate) fn die(&self, dies: bool) {
        self.0.lock().unwrap().dies = dies;
    }

    pub(crate) fn applied(&self) -> usize {
        self.0.lock().unwrap().applied.len()
    }

    pub(crate) fn given(&self) -> usize {
        self.0.lock().unwrap().given
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.lock().unwrap().calls
    }

    /// The bodies of the tasks that were applied under a key, or `verb` if there is none.
    pub(crate) fn history(&self, key: &str) -> Vec<String> {
        let record = self.0.lock().unwrap();
        let of_key = record.applied.iter().filter(|command| command.key.as_deref() == Some(key));
        let text = |command: &SourceCommand| {
            let task = command.task.as_deref().unwrap_or_default();
            let task: serde_json::Value = serde_json::from_str(task).unwrap_or_default();
            match &task["payload"] {
                serde_json::Value::Null => command.verb.as_str().to_owned(),
                payload => payload.to_string(),
            }
        };
        of_key.map(text).collect()
    }

    fn take(&self, commands: Vec<SourceCommand>) -> (Vec<Applied>, bool) {
        let mut record = self.0.lock().unwrap();
        record.calls += 1;
        let results = commands.into_iter().map(|command| {
            record.given += 1;
            let refused = match &record.refuses {
                IntakeRefusal::Nothing => false,
                IntakeRefusal::Everything => true,
                IntakeRefusal::Key(key) => command.key.as_ref() == Some(key),
            };
            if refused {
                return Applied::Later("busy".to_owned());
            }
            if command.task.as_deref().is_some_and(|task| task.contains("poison")) {
                return Applied::Rejected("{\"detail\":\"poison\"}".to_owned());
            }
            if record.ids.insert(command.id.clone()) {
                record.applied.push(command);
            }
            Applied::Done
        });
        let results = results.collect();
        (results, record.dies)
    }
}

impl Intake for TestIntake {
    fn apply(&self, commands: Vec<SourceCommand>) -> DynFuture<'_, Vec<Applied>> {
        Box::pin(async move {
            let (results, dies) = self.take(commands);
            if dies {
                std::future::pending::<()>().await;
            }
            results
        })
    }
}
