//! Applies commands so that those of one key are never overtaken.
//!
//! An intake may refuse one command and apply the next. If both are about the same key, the first
//! would be applied after the second. So a call to the intake has at most one command of each key,
//! and a key with a command that was not applied has no further one until the next round.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use punctual_core::Namespace;
use tokio::time::timeout;

use super::intake::{Applied, Intake, SourceCommand, Verb};

/// What a command is about, if it names a key.
type CommandKey = (Namespace, String);

/// Where the result of a command comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The call that has it, counted from zero.
    Call(usize),
    /// A touch that repeats the one before it of its key: the result of that.
    SameAs(usize),
}

/// Applies commands in calls to the intake, within a time. Returns one result per command, in
/// order.
pub(crate) async fn apply_in_order(
    intake: &dyn Intake,
    commands: Vec<SourceCommand>,
    max: Duration,
) -> Vec<Applied> {
    let turns = turns(&commands);
    let mut results: Vec<Option<Applied>> = vec![None; commands.len()];
    let calls = apply_calls(intake, &commands, &turns, &mut results);
    // What has no result is taken as unknown below.
    let _ = timeout(max, calls).await;
    for (at, turn) in turns.iter().enumerate() {
        if let Turn::SameAs(first) = turn {
            results[at] = results[*first].clone();
        }
    }
    let unknown = || Applied::Later("the broker did not answer in time".to_owned());
    results.into_iter().map(|result| result.unwrap_or_else(unknown)).collect()
}

async fn apply_calls(
    intake: &dyn Intake,
    commands: &[SourceCommand],
    turns: &[Turn],
    results: &mut [Option<Applied>],
) {
    let mut refused: HashSet<CommandKey> = HashSet::new();
    let mut calls: Vec<Vec<usize>> = Vec::new();
    for (at, turn) in turns.iter().enumerate() {
        if let Turn::Call(call) = *turn {
            if calls.len() <= call {
                calls.resize(call + 1, Vec::new());
            }
            calls[call].push(at);
        }
    }
    for mut call in calls {
        call.retain(|at| {
            let waits = key_of(&commands[*at]).is_some_and(|key| refused.contains(&key));
            if waits {
                let why = "an earlier command of the key waits".to_owned();
                results[*at] = Some(Applied::Later(why));
            }
            !waits
        });
        if call.is_empty() {
            continue;
        }
        let applied = intake.apply(call.iter().map(|at| commands[*at].clone()).collect()).await;
        for (at, applied) in call.into_iter().zip(applied) {
            if matches!(applied, Applied::Later(_)) {
                refused.extend(key_of(&commands[at]));
            }
            results[at] = Some(applied);
        }
    }
}

fn key_of(command: &SourceCommand) -> Option<CommandKey> {
    Some((command.namespace.clone(), command.key.clone()?))
}

fn turns(commands: &[SourceCommand]) -> Vec<Turn> {
    let mut last: HashMap<CommandKey, usize> = HashMap::new();
    let mut turns: Vec<Turn> = Vec::with_capacity(commands.len());
    for (at, command) in commands.iter().enumerate() {
        let before = key_of(command).and_then(|key| last.insert(key, at));
        turns.push(match before {
            None => Turn::Call(0),
            Some(before) => {
                let first = match turns[before] {
                    Turn::SameAs(first) => first,
                    Turn::Call(_) => before,
                };
                match turns[first] {
                    _ if repeats(command, &commands[first]) => Turn::SameAs(first),
                    Turn::Call(call) => Turn::Call(call + 1),
                    Turn::SameAs(_) => Turn::Call(0),
                }
            }
        });
    }
    turns
}

/// Whether a touch has no effect if it follows another at once.
fn repeats(command: &SourceCommand, before: &SourceCommand) -> bool {
    command.verb == Verb::Touch
        && before.verb == Verb::Touch
        && (&command.task, &command.create) == (&before.task, &before.create)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::sink::DynFuture;

    /// Refuses the commands whose ids it has, and never answers one about `stuck`.
    #[derive(Debug, Default)]
    struct PickyIntake {
        refuses: Vec<&'static str>,
        calls: Mutex<Vec<Vec<String>>>,
    }

    impl Intake for PickyIntake {
        fn apply(&self, commands: Vec<SourceCommand>) -> DynFuture<'_, Vec<Applied>> {
            Box::pin(async move {
                if commands.iter().any(|command| command.id == "stuck") {
                    std::future::pending::<()>().await;
                }
                let ids = commands.iter().map(|command| command.id.clone()).collect();
                self.calls.lock().unwrap().push(ids);
                let result = |command: SourceCommand| match command.id.as_str() {
                    id if self.refuses.contains(&id) => Applied::Later("busy".to_owned()),
                    _ => Applied::Done,
                };
                commands.into_iter().map(result).collect()
            })
        }
    }

    fn command(id: &str, verb: Verb, key: &str) -> SourceCommand {
        SourceCommand {
            id: id.to_owned(),
            digest: String::new(),
            namespace: Namespace::new("shop").unwrap(),
            verb,
            key: Some(key.to_owned()).filter(|key| !key.is_empty()),
            task: None,
            create: None,
        }
    }

    async fn outcome(intake: &PickyIntake, commands: Vec<SourceCommand>) -> Vec<bool> {
        let results = apply_in_order(intake, commands, Duration::from_secs(1)).await;
        results.iter().map(|result| *result == Applied::Done).collect()
    }

    #[tokio::test]
    async fn a_command_does_not_overtake_an_earlier_one_of_its_key() {
        let intake = PickyIntake { refuses: vec!["a1"], ..PickyIntake::default() };
        let commands = vec![
            command("a1", Verb::Schedule, "a"),
            command("b1", Verb::Schedule, "b"),
            command("a2", Verb::Cancel, "a"),
            command("b2", Verb::Cancel, "b"),
            command("x", Verb::Schedule, ""),
            command("y", Verb::Schedule, ""),
            command("a3", Verb::Schedule, "a"),
        ];
        let done = outcome(&intake, commands).await;
        assert_eq!(done, [false, true, false, true, true, true, false]);
        let calls = intake.calls.lock().unwrap();
        assert_eq!(*calls, [vec!["a1", "b1", "x", "y"], vec!["b2"]]);
    }

    #[tokio::test]
    async fn a_touch_that_repeats_the_one_before_it_is_not_applied_again() {
        let intake = PickyIntake::default();
        let commands = vec![
            command("1", Verb::Touch, "a"),
            command("2", Verb::Touch, "a"),
            command("3", Verb::Touch, "a"),
            command("4", Verb::Cancel, "a"),
            command("5", Verb::Touch, "a"),
        ];
        assert_eq!(outcome(&intake, commands).await, [true; 5]);
        assert_eq!(*intake.calls.lock().unwrap(), [vec!["1"], vec!["4"], vec!["5"]]);
    }

    #[tokio::test]
    async fn what_is_not_answered_in_time_is_given_again() {
        let intake = PickyIntake::default();
        let commands =
            vec![command("1", Verb::Schedule, "a"), command("stuck", Verb::Schedule, "a")];
        let results = apply_in_order(&intake, commands, Duration::from_millis(20)).await;
        assert_eq!(results[0], Applied::Done);
        assert!(matches!(&results[1], Applied::Later(why) if why.contains("in time")));
    }
}
