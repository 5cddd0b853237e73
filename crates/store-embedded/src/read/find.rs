//! Finding: which task a key names. This is the one read on a hot path.
//!
//! A name leads to a head with id and schedule; a relocation has the time after every postponement.
//! Memory is asked first, and rows that the catalog returns are cached.

use std::collections::HashMap;

use punctual_core::{Namespace, PartitionId, TaskId, TaskKey, TaskState};
use punctual_store::Head;

use crate::fault::{ReadContext, StorageFault};
use crate::state::StoreState;
use crate::state::layers::IdHash;
use crate::state::names::{NameHash, NameKey, NameRow, NameTarget, name_of};
use crate::state::relocation::Relocation;
use crate::store_core::StoreCore;

/// Rows that were read from the catalog.
#[derive(Debug, Default)]
struct CatalogAnswers {
    names: HashMap<NameKey, Option<Head>, NameHash>,
    relocations: HashMap<TaskId, Option<Relocation>, IdHash>,
}

/// What is known about a name from memory and from the rows that were read.
enum FindResult {
    Known(Option<Head>),
    AskName,
    AskRelocation(TaskId),
}

impl StoreCore {
    /// Answers from memory, if memory knows everything.
    pub(crate) fn find_in_memory(
        &self,
        names: &[NameKey],
    ) -> Result<Option<Vec<Option<Head>>>, StorageFault> {
        let state = self.state()?;
        let nothing = CatalogAnswers::default();
        let mut heads = Vec::with_capacity(names.len());
        for name in names {
            match resolve_name(&state, name, &nothing)? {
                FindResult::Known(head) => heads.push(head),
                FindResult::AskName | FindResult::AskRelocation(_) => return Ok(None),
            }
        }
        Ok(Some(heads))
    }

    /// Answers from memory and the catalog.
    pub(crate) fn find(&self, names: &[NameKey]) -> Result<Vec<Option<Head>>, StorageFault> {
        let mut in_catalog = CatalogAnswers::default();
        let mut checkpoints = self.state()?.checkpoints;
        loop {
            let mut ask_names = Vec::new();
            let mut ask_relocations = Vec::new();
            let mut heads = Vec::with_capacity(names.len());
            {
                let mut state = self.state()?;
                if state.checkpoints != checkpoints {
                    checkpoints = state.checkpoints;
                    in_catalog = CatalogAnswers::default();
                }
                for name in names {
                    match resolve_name(&state, name, &in_catalog)? {
                        FindResult::Known(head) => heads.push(head),
                        FindResult::AskName => ask_names.push(name),
                        FindResult::AskRelocation(id) => ask_relocations.push(id),
                    }
                }
                if heads.len() == names.len() {
                    remember(&mut state, in_catalog);
                    return Ok(heads);
                }
            }
            for name in ask_names {
                in_catalog.names.insert(name.clone(), self.catalog.head(name)?);
            }
            for id in ask_relocations {
                in_catalog.relocations.insert(id, self.catalog.relocation(id)?);
            }
        }
    }
}

fn resolve_name(
    state: &StoreState,
    name: &NameKey,
    in_catalog: &CatalogAnswers,
) -> Result<FindResult, StorageFault> {
    let from_catalog = || match in_catalog.names.get(name) {
        Some(head) => Some(head.clone()),
        None => (!state.names.in_catalog()).then_some(None),
    };
    let target = state.names.row::<[u8]>(name).map(|(row, ())| row.target());
    let head = match target.transpose().reading("name")? {
        Some(NameTarget::Is(head)) => Some(Some(head)),
        Some(NameTarget::Gone) => Some(None),
        Some(gone_if) => from_catalog().map(|head| gone_if.resolve(head)),
        None => from_catalog(),
    };
    let mut head = match head {
        Some(Some(head)) if head.state == TaskState::Scheduled => head,
        Some(head) => return Ok(FindResult::Known(head)),
        None => return Ok(FindResult::AskName),
    };
    let relocation = match state.relocations.get(&head.id) {
        Some(relocation) => *relocation,
        None if !state.relocations.in_catalog() => None,
        None => match in_catalog.relocations.get(&head.id) {
            Some(relocation) => *relocation,
            None => return Ok(FindResult::AskRelocation(head.id)),
        },
    };
    if let Some(moved) = relocation.and_then(|relocation| relocation.moved()) {
        head.fire_at = moved.fire_at;
        head.nominal_at = moved.fire_at;
        head.version = moved.version;
    }
    Ok(FindResult::Known(Some(head)))
}

fn remember(state: &mut StoreState, in_catalog: CatalogAnswers) {
    for (name, head) in in_catalog.names {
        state
            .names
            .remember(NameRow::new(&name, &head.map_or(NameTarget::Gone, NameTarget::Is)), ());
    }
    for (id, relocation) in in_catalog.relocations {
        state.relocations.remember(id, relocation);
    }
}

/// The names of keys.
pub(crate) fn names_of(
    partition: PartitionId,
    namespace: &Namespace,
    keys: &[TaskKey],
) -> Vec<NameKey> {
    keys.iter().map(|key| name_of(partition, namespace, key)).collect()
}
