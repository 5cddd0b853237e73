//! Deduplication: a fire that is delivered more than once takes effect once.
//!
//! In one process, at most one effect of a fire runs at a time. An effect that succeeded does not
//! run again while its fire is remembered; one that failed runs again with the next attempt.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::BoxFuture;
use crate::delivery::FireId;
use crate::failure::Failure;

type Table = dyn Fn(FireId) -> BoxFuture<Result<FireSeen, Failure>> + Send + Sync;

/// Whether the caller's table has a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FireSeen {
    /// The fire has taken effect.
    Before,
    /// The table does not have the fire.
    Never,
}

/// Remembers fires, so that a fire that is delivered *at least once* takes effect once.
///
/// A fire is delivered again if its ack was lost, if a worker or a broker crashed, or if a lease
/// ended before the work was done. All deliveries of a fire have the same [`FireId`].
///
/// - [`Dedup::in_memory`] remembers the latest fires of this process. After a lost ack, the end of
///   a lease or a restart of the broker, a fire takes effect once, as long as it is delivered to
///   the same process and is still remembered.
/// - [`Dedup::with_table`] also checks a table of yours. If the effect inserts the fire id into
///   that table as a unique key, **in the same transaction** as everything else it does, the fire
///   takes effect once across all restarts and all workers: a second effect fails on the unique
///   key, is retried, is found in the table, and is acked.
///
/// It cannot undo half an effect, and does not know of effects outside of your transaction, such as
/// a mail that was sent just before the process crashed. For those, the receiver must deduplicate
/// by the fire id.
///
/// Cheap to clone; clones share one memory.
#[derive(Clone)]
pub struct Dedup {
    memory: Arc<Mutex<FireMemory>>,
    table: Option<Arc<Table>>,
}

/// Whether the fire has taken effect. Locked while the effect runs, so that a second delivery waits
/// for the outcome of the first.
type EffectState = Arc<tokio::sync::Mutex<bool>>;

#[derive(Debug)]
struct FireMemory {
    fires: HashMap<FireId, EffectState>,
    /// Oldest first.
    order: VecDeque<FireId>,
    fires_max: usize,
}

impl fmt::Debug for Dedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dedup").field("with_table", &self.table.is_some()).finish_non_exhaustive()
    }
}

impl Dedup {
    /// Remembers the latest `fires_max` fires, at about 200 bytes each. It should be more than are
    /// delivered during the longest lease plus the longest pause between attempts.
    #[must_use]
    pub fn in_memory(fires_max: usize) -> Self {
        let memory = FireMemory {
            fires: HashMap::new(),
            order: VecDeque::new(),
            fires_max: fires_max.max(1),
        };
        Self { memory: Arc::new(Mutex::new(memory)), table: None }
    }

    /// Like [`Dedup::in_memory`], and calls `seen` for fires that are not remembered. The effect
    /// itself must write the fire id to the table.
    #[must_use]
    pub fn with_table<S, F>(fires_max: usize, seen: S) -> Self
    where
        S: Fn(FireId) -> F + Send + Sync + 'static,
        F: Future<Output = Result<FireSeen, Failure>> + Send + 'static,
    {
        let table = move |fire_id| -> BoxFuture<_> { Box::pin(seen(fire_id)) };
        Self { table: Some(Arc::new(table)), ..Self::in_memory(fires_max) }
    }

    /// Runs the effect, unless the fire has taken effect already; then returns `Ok` without it.
    ///
    /// # Errors
    /// The failure of the effect or of the table. The next attempt runs the effect again.
    pub async fn once<E, F>(&self, fire_id: &FireId, effect: E) -> Result<(), Failure>
    where
        E: FnOnce() -> F,
        F: Future<Output = Result<(), Failure>>,
    {
        self.once_with(fire_id, effect).await.map(Option::unwrap_or_default)
    }

    /// The same as [`Dedup::once`], with the value of the effect; `None` if it has not run.
    pub(crate) async fn once_with<E, F, T>(
        &self,
        fire_id: &FireId,
        effect: E,
    ) -> Result<Option<T>, Failure>
    where
        E: FnOnce() -> F,
        F: Future<Output = Result<T, Failure>>,
    {
        let entry = self.memory().entry(fire_id);
        let mut done = entry.lock().await;
        if *done {
            return Ok(None);
        }
        if let Some(table) = &self.table
            && table(fire_id.clone()).await? == FireSeen::Before
        {
            *done = true;
            return Ok(None);
        }
        let value = effect().await?;
        *done = true;
        Ok(Some(value))
    }

    fn memory(&self) -> MutexGuard<'_, FireMemory> {
        // A panic of another thread leaves it consistent, so poisoning is ignored.
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
    async fn two_concurrent_deliveries_of_a_fire_have_one_effect_and_two_acks() {
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
    async fn an_effect_that_failed_runs_again_with_the_next_attempt() {
        let dedup = Dedup::in_memory(10);
        let fire_id = FireId::from("f1");
        let failed = dedup.once(&fire_id, || async { Err(Failure::fail("no")) }).await;
        assert_eq!(failed, Err(Failure::fail("no")));
        let mut effects = 0;
        for _ in 0..2 {
            let again = dedup.once(&fire_id, || {
                effects += 1;
                async { Ok(()) }
            });
            assert_eq!(again.await, Ok(()));
        }
        assert_eq!(effects, 1);
    }

    #[tokio::test]
    async fn memory_is_bounded_and_the_table_has_older_fires() {
        let table = Arc::new(Mutex::new(Vec::new()));
        let lookup = Arc::clone(&table);
        let dedup = Dedup::with_table(2, move |fire_id| {
            let seen = lookup.lock().unwrap().contains(&fire_id);
            async move { Ok(if seen { FireSeen::Before } else { FireSeen::Never }) }
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
