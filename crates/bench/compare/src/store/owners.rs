//! The owners of a store that is measured: 16 partitions on two threads.

use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use punctual_core::{BrokerId, Lease, PartitionId, Partitions, Seat, TaskId, Timestamp};
use punctual_store::{Batch, BatchNo, Change, LeaseStore, TaskStore};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};
use tokio::runtime::Runtime;

use crate::figures::grouped;
use crate::machine;
use crate::tasks::{NOW, TaskMaker, hash};

pub const OWNERS: u64 = 16;
pub const BATCH: u64 = 1000;
const LEASE: Duration = Duration::from_secs(400 * 86_400);
/// Threads of the runtime.
pub const THREADS: usize = 2;

/// The result of anything that can fail in the bench.
pub type BenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Sums of ids are passed as `f64`, which is exact up to this.
pub const SUM_MASK: u64 = (1 << 48) - 1;

/// Sums the hashes of ids.
pub fn sum_of(ids: impl Iterator<Item = TaskId>) -> u64 {
    ids.fold(0, |sum, id| (sum + (hash(id) & SUM_MASK)) & SUM_MASK)
}

/// A store with all its partitions owned.
pub struct StoreBench {
    pub store: Arc<EmbeddedStore>,
    pub leases: Vec<Lease>,
    pub maker: TaskMaker,
    pub runtime: Runtime,
}

/// The owner of one partition. It has one call in flight, as the contract of a store requires.
#[derive(Clone)]
pub struct BenchOwner {
    pub store: Arc<EmbeddedStore>,
    pub partition: PartitionId,
    lease: Lease,
    pub batch: BatchNo,
    pub maker: TaskMaker,
    pub progress: Arc<BenchProgress>,
    /// When each call was answered, and how long it took.
    pub answers: Vec<(Instant, Duration)>,
}

/// Prints progress to standard error, every tenth.
pub struct BenchProgress {
    what: &'static str,
    done: AtomicU64,
    total: u64,
    begun: Instant,
}

impl BenchProgress {
    pub fn new(what: &'static str, total: u64) -> Arc<BenchProgress> {
        Arc::new(BenchProgress { what, done: AtomicU64::new(0), total, begun: machine::start() })
    }

    pub fn add(&self, tasks: u64) {
        let before = self.done.fetch_add(tasks, Relaxed);
        let (done, step) = (before + tasks, (self.total / 10).max(1));
        if done / step > before / step {
            let rate = done as f64 / self.begun.elapsed().as_secs_f64();
            eprintln!(
                "  {}: {} of {}, {}/s, {:.0} MiB resident",
                self.what,
                grouped(done as f64),
                grouped(self.total as f64),
                grouped(rate),
                machine::memory_mib("VmRSS"),
            );
        }
    }
}

impl StoreBench {
    pub fn open(dir: &Path, owners: u64) -> BenchResult<StoreBench> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).build()?;
        let partitions = Partitions::new(u16::try_from(owners)?)?;
        let (store, _) = EmbeddedStore::open(dir, EmbeddedOptions::new(partitions))?;
        let broker = BrokerId::new("bench:1");
        let leases = runtime.block_on(async {
            let mut leases = Vec::new();
            for partition in partitions.iter() {
                let seat = Seat::Partition(partition);
                leases.push(store.acquire(seat, &broker, LEASE, NOW).await?);
            }
            Ok::<_, punctual_store::StoreError>(leases)
        })?;
        Ok(StoreBench { store: Arc::new(store), leases, maker: TaskMaker::new(), runtime })
    }

    /// Runs `work` for every owner, and returns the results.
    pub fn run<F>(
        &mut self,
        progress: &Arc<BenchProgress>,
        work: impl Fn(BenchOwner) -> F,
    ) -> BenchResult<Vec<F::Done>>
    where
        F: OwnerWork,
    {
        let owners = self.leases.iter().filter_map(|lease| match lease.seat {
            Seat::Partition(partition) => Some(BenchOwner {
                store: Arc::clone(&self.store),
                partition,
                lease: lease.clone(),
                batch: BatchNo::FIRST,
                maker: self.maker.clone(),
                progress: Arc::clone(progress),
                answers: Vec::new(),
            }),
            Seat::Leader => None,
        });
        let running: Vec<_> = owners.map(|owner| self.runtime.spawn(work(owner))).collect();
        self.runtime.block_on(async {
            let mut done = Vec::new();
            for owner in running {
                done.push(owner.await??);
            }
            Ok(done)
        })
    }

    /// Acquires the leases again, so that batch numbers start again.
    pub fn own_again(&mut self) -> BenchResult<()> {
        let broker = BrokerId::new("bench:1");
        for lease in &mut self.leases {
            *lease = self.runtime.block_on(self.store.acquire(lease.seat, &broker, LEASE, NOW))?;
        }
        Ok(())
    }

    pub fn checkpoint(&self) -> BenchResult<()> {
        Ok(self.runtime.block_on(self.store.checkpoint())?)
    }

    pub fn scheduled(&self) -> BenchResult<u64> {
        let mut scheduled = 0;
        for lease in &self.leases {
            let Seat::Partition(partition) = lease.seat else { continue };
            let counts = self.store.counts(partition, &self.maker.namespace);
            scheduled += self.runtime.block_on(counts)?.scheduled;
        }
        Ok(u64::try_from(scheduled)?)
    }

    pub fn close(self) -> BenchResult<()> {
        let store = Arc::into_inner(self.store).ok_or("the store is still in use")?;
        Ok(self.runtime.block_on(store.close())?)
    }
}

/// The work of an owner, as a future.
pub trait OwnerWork: Future<Output = BenchResult<Self::Done>> + Send + 'static {
    type Done: Send + 'static;
}

impl<T: Send + 'static, F: Future<Output = BenchResult<T>> + Send + 'static> OwnerWork for F {
    type Done = T;
}

impl BenchOwner {
    pub async fn apply(&mut self, changes: Vec<Change>) -> BenchResult<()> {
        let tasks = changes.len() as u64;
        let batch = Batch::new(self.batch, changes);
        self.batch = self.batch.next();
        let started = machine::start();
        self.store.apply(self.partition, self.lease.epoch, batch).await?;
        let answered = machine::start();
        self.answers.push((answered, answered - started));
        self.progress.add(tasks);
        Ok(())
    }

    /// Renews the lease, which gives the store the time.
    pub async fn renew_at(&mut self, now: Timestamp) -> BenchResult<()> {
        self.lease = self.store.renew(&self.lease, LEASE, now).await?;
        Ok(())
    }
}
