//! Dedup: one effect of a fire that is delivered more than once.
//!
//! In: a fire id and an effect. Out: the effect's outcome, or success without it when it was had before.
//! Invariants: of one fire at most one effect runs at a time in this process; one that succeeded does not run again as
//! long as it is remembered; one that failed does.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::worker::{Failure, FireId};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Table = dyn Fn(FireId) -> BoxFuture<Result<Seen, Failure>> + Send + Sync;

/// What a table of the caller's knows of a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Its effect was had.
    Before,
    /// Nothing.
    Never,
}

/// A memory of fires, so that *at least once* becomes one effect.
///
/// A delivery comes again when its ack was lost, when a worker or a broker died, or when a lease ended before the work
/// was done. All of these carry the same [`FireId`].
///
/// What it can do:
/// - [`Dedup::in_memory`] remembers the last so many fires of this process: lost acks, ended leases and restarts of the
///   broker have one effect, as long as the fire comes back to this process and is still remembered.
/// - [`Dedup::with_table`] asks a table of yours as well. When the effect writes the fire id into that table **in the
///   same transaction** as whatever else it does, with the id as a unique key, the effect is had once, whatever
///   restarts and however many workers there are: a second one fails on the unique key, is tried again, is found in
///   the table, and is acked.
///
/// What it cannot do: undo half an effect, or know of one that is outside your transaction (a mail that was sent just
/// before the process died). Nothing can, short of a receiver that dedups on the fire id itself.
///
/// Cheap to clone; clones share one memory.
#[derive(Clone)]
pub struct Dedup {
    memory: Arc<Mutex<FireMemory>>,
    table: Option<Arc<Table>>,
}

/// Whether the effect was had. Held while it runs, so that a second delivery waits for the first one's outcome.
type EffectState = Arc<tokio::sync::Mutex<bool>>;

#[derive(Debug)]
struct FireMemory {
    fires: HashMap<FireId, EffectState>,
    /// In the order in which they were first seen.
    order: VecDeque<FireId>,
    fires_max: usize,
}

impl fmt::Debug for Dedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dedup").field("with_table", &self.table.is_some()).finish_non_exhaustive()
    }
}

impl Dedup {
    /// Remembers the last `fires_max` fires, at about 200 bytes each. It should be more than what is delivered in the
    /// longest lease plus the longest pause between attempts.
    #[must_use]
    pub fn in_memory(fires_max: usize) -> Self {
        let memory = FireMemory {
            fires: HashMap::new(),
            order: VecDeque::new(),
            fires_max: fires_max.max(1),
        };
        Self { memory: Arc::new(Mutex::new(memory)), table: None }
    }

    /// The same, and asks `seen` about fires that are not remembered. The effect itself writes them there.
    #[must_use]
    pub fn with_table<S, F>(fires_max: usize, seen: S) -> Self
    where
        S: Fn(FireId) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Seen, Failure>> + Send + 'static,
    {
        let table = move |fire_id| -> BoxFuture<_> { Box::pin(seen(fire_id)) };
        Self { table: Some(Arc::new(table)), ..Self::in_memory(fires_max) }
    }

    /// Has the effect, unless it was had before; then it says `Ok` without.
    ///
    /// # Errors
    /// What the effect, or the table, failed with. It is had again by the next attempt.
    pub async fn once<E, F>(&self, fire_id: &FireId, effect: E) -> Result<(), Failure>
    where
        E: FnOnce() -> F,
        F: Future<Output = Result<(), Failure>>,
    {
        let entry = self.memory().entry(fire_id);
        let mut had = entry.lock().await;
        if *had {
            return Ok(());
        }
        if let Some(table) = &self.table
            && table(fire_id.clone()).await? == Seen::Before
        {
            *had = true;
            return Ok(());
        }
        effect().await?;
        *had = true;
        Ok(())
    }

    fn memory(&self) -> MutexGuard<'_, FireMemory> {
        // A panic elsewhere leaves the memory whole: every change of it is one call.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FireMemory {
    fn entry(&mut self, fire_id: &FireId) -> EffectState {
        if let Some(entry) = self.fires.get(fire_id) {
            return Arc::clone(entry);
        }
        while self.order.len() >= self.fires_max {
            let Some(oldest) = self.order.pop_front() else { break };
            self.fires.remove(&oldest);
        }
        let entry = EffectState::default();
        self.fires.insert(fire_id.clone(), Arc::clone(&entry));
        self.order.push_back(fire_id.clone());
        entry
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_fire_that_comes_twice_at_once_has_one_effect_and_two_acks() {
        let dedup = Dedup::in_memory(10);
        let fire_id = FireId::from("f1");
        let effects = AtomicU32::new(0);
        let effect = || async {
            effects.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(())
        };
        let both = tokio::join!(dedup.once(&fire_id, effect), dedup.once(&fire_id, effect));
        assert_eq!(both, (Ok(()), Ok(())));
        assert_eq!(effects.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn an_effect_that_failed_is_had_by_the_next_attempt() {
        let dedup = Dedup::in_memory(10);
        let fire_id = FireId::from("f1");
        let failed = dedup.once(&fire_id, || async { Err(Failure::fail("no")) }).await;
        assert_eq!(failed, Err(Failure::fail("no")));
        let mut had = 0;
        for _ in 0..2 {
            let again = dedup.once(&fire_id, || {
                had += 1;
                async { Ok(()) }
            });
            assert_eq!(again.await, Ok(()));
        }
        assert_eq!(had, 1);
    }

    #[tokio::test]
    async fn memory_has_a_bound_and_the_table_knows_the_rest() {
        let table = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&table);
        let dedup = Dedup::with_table(2, move |fire_id| {
            let seen = known.lock().unwrap().contains(&fire_id);
            async move { Ok(if seen { Seen::Before } else { Seen::Never }) }
        });
        let mut effects = 0;
        for name in ["a", "b", "c", "a", "b", "c"] {
            let fire_id = FireId::from(name);
            let effect = || {
                effects += 1;
                table.lock().unwrap().push(fire_id.clone());
                async { Ok(()) }
            };
            assert_eq!(dedup.once(&fire_id, effect).await, Ok(()), "{name}");
        }
        assert_eq!(effects, 3);
        assert_eq!(dedup.memory().fires.len(), 2);
    }
}
