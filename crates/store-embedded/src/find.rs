//! Finding: what keys lead to. The one read on a hot path.
//!
//! In: keys. Out: heads. A name gives the id and the schedule, a standing the time after every postponement; both are asked of
//! memory first, and what the catalog answers is remembered.

use std::collections::HashMap;

use punctual_core::{Namespace, PartitionId, TaskId, TaskKey, TaskState};
use punctual_store::Head;

use crate::fault::{Fault, Reading};
use crate::inner::Inner;
use crate::layers::IdHash;
use crate::names::{Name, NameRow, Named, name_of};
use crate::standing::Standing;
use crate::state::State;

/// What the catalog said.
#[derive(Debug, Default)]
struct Beneath {
    names: HashMap<Name, Option<Head>>,
    standings: HashMap<TaskId, Option<Standing>, IdHash>,
}

/// What memory, with what the catalog said, knows of a name.
enum Answer {
    Known(Option<Head>),
    AskName,
    AskStanding(TaskId),
}

impl Inner {
    /// Answers from memory alone, if it knows everything.
    pub(crate) fn find_in_memory(
        &self,
        names: &[Name],
    ) -> Result<Option<Vec<Option<Head>>>, Fault> {
        let state = self.state()?;
        let nothing = Beneath::default();
        let mut heads = Vec::with_capacity(names.len());
        for name in names {
            match answer(&state, name, &nothing)? {
                Answer::Known(head) => heads.push(head),
                Answer::AskName | Answer::AskStanding(_) => return Ok(None),
            }
        }
        Ok(Some(heads))
    }

    /// Answers with the help of the catalog.
    pub(crate) fn find(&self, names: &[Name]) -> Result<Vec<Option<Head>>, Fault> {
        let mut beneath = Beneath::default();
        let mut checkpoints = self.state()?.checkpoints;
        loop {
            let mut ask_names = Vec::new();
            let mut ask_standings = Vec::new();
            let mut heads = Vec::with_capacity(names.len());
            {
                let mut state = self.state()?;
                if state.checkpoints != checkpoints {
                    checkpoints = state.checkpoints;
                    beneath = Beneath::default();
                }
                for name in names {
                    match answer(&state, name, &beneath)? {
                        Answer::Known(head) => heads.push(head),
                        Answer::AskName => ask_names.push(name),
                        Answer::AskStanding(id) => ask_standings.push(id),
                    }
                }
                if heads.len() == names.len() {
                    remember(&mut state, beneath);
                    return Ok(heads);
                }
            }
            for name in ask_names {
                beneath.names.insert(name.clone(), self.catalog.head(name)?);
            }
            for id in ask_standings {
                beneath.standings.insert(id, self.catalog.standing(id)?);
            }
        }
    }
}

fn answer(state: &State, name: &Name, beneath: &Beneath) -> Result<Answer, Fault> {
    let from_catalog = || match beneath.names.get(name) {
        Some(head) => Some(head.clone()),
        None => (!state.names.beneath()).then_some(None),
    };
    let named = state.names.row::<[u8]>(name).map(|(row, ())| row.named());
    let head = match named.transpose().reading("name")? {
        Some(Named::Is(head)) => Some(Some(head)),
        Some(Named::Gone) => Some(None),
        Some(gone_if) => from_catalog().map(|head| gone_if.resolve(head)),
        None => from_catalog(),
    };
    let mut head = match head {
        Some(Some(head)) if head.state == TaskState::Scheduled => head,
        Some(head) => return Ok(Answer::Known(head)),
        None => return Ok(Answer::AskName),
    };
    let standing = match state.standings.get(&head.id) {
        Some(standing) => *standing,
        None if !state.standings.beneath() => None,
        None => match beneath.standings.get(&head.id) {
            Some(standing) => *standing,
            None => return Ok(Answer::AskStanding(head.id)),
        },
    };
    if let Some(moved) = standing.and_then(|standing| standing.moved()) {
        head.fire_at = moved.fire_at;
        head.nominal_at = moved.fire_at;
        head.version = moved.version;
    }
    Ok(Answer::Known(Some(head)))
}

fn remember(state: &mut State, beneath: Beneath) {
    for (name, head) in beneath.names {
        state.names.remember(NameRow::new(&name, &head.map_or(Named::Gone, Named::Is)), ());
    }
    for (id, standing) in beneath.standings {
        state.standings.remember(id, standing);
    }
}

/// The names of keys.
pub(crate) fn names_of(
    partition: PartitionId,
    namespace: &Namespace,
    keys: &[TaskKey],
) -> Vec<Name> {
    keys.iter().map(|key| name_of(partition, namespace, key)).collect()
}
