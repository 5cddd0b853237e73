//! The tasks of the bench. Each is computed from its partition and sequence, so none is stored.
//!
//! A task is due at random within 30 days, with 128 bytes of JSON that compress badly. A sum over
//! ids proves that a part has seen each task once. Building a task is cheap; what it costs is
//! measured (`making`) and reported.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    Due, Epoch, Namespace, NewTask, PartitionId, Payload, Queue, Schedule, Sequence, Target, Task,
    TaskId, TaskKey, Timestamp, Version,
};
use punctual_store::codec::put_task;

/// The time at which the bench starts. Time is an argument of the store, so the bench never waits.
pub const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
pub const DAY: Duration = Duration::from_secs(86_400);
/// Due times are random over this many days.
pub const DAYS: u32 = 30;
pub const PAYLOAD_BYTES: usize = 128;

const PAYLOADS: usize = 8192;
/// Every store of the bench is new, so each partition has its first owner.
pub const EPOCH: u32 = 1;

#[derive(Debug, Clone)]
pub struct TaskMaker {
    /// `PAYLOADS` payloads in a row. The payload of a task is a slice of this.
    payloads: Bytes,
    pub namespace: Namespace,
    target: Target,
}

impl TaskMaker {
    pub fn new() -> TaskMaker {
        let mut random = TaskRandom(7);
        let letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
        let mut payloads = Vec::with_capacity(PAYLOADS * PAYLOAD_BYTES);
        for _ in 0..PAYLOADS {
            payloads.push(b'"');
            for _ in 0..PAYLOAD_BYTES - 2 {
                payloads.push(letters[random.below(letters.len() as u64) as usize]);
            }
            payloads.push(b'"');
        }
        TaskMaker {
            payloads: payloads.into(),
            namespace: Namespace::new("shop").expect("a valid name"),
            target: Target::Queue(Queue::new("orders").expect("a valid name")),
        }
    }

    /// A task that is due at random within 30 days.
    pub fn task(&self, partition: PartitionId, sequence: u64) -> Task {
        self.task_of(id_of(partition, sequence))
    }

    /// A task that is due after all tasks of [`TaskMaker::task`].
    pub fn late_task(&self, partition: PartitionId, sequence: u64) -> Task {
        let due = NOW.after(DAY * (DAYS + 1));
        self.task_of(TaskId::new(due, partition, epoch(), number(sequence)))
    }

    /// A watch with a key.
    pub fn watch(&self, partition: PartitionId, sequence: u64) -> Task {
        let mut task = self.task(partition, sequence);
        let definition = Arc::make_mut(&mut task.definition);
        definition.key = Some(key_of(partition, sequence));
        definition.schedule = Schedule::watch(DAY);
        task
    }

    fn task_of(&self, id: TaskId) -> Task {
        let schedule = Schedule::Once(Due::At(id.due()));
        let mut definition = NewTask::new(self.namespace.clone(), schedule, self.target.clone());
        definition.payload = Payload::Json(self.payload(id));
        Task::new(id, Arc::new(definition), NOW, Version::FIRST)
    }

    pub fn payload(&self, id: TaskId) -> Bytes {
        let from = (hash(id) as usize % PAYLOADS) * PAYLOAD_BYTES;
        self.payloads.slice(from..from + PAYLOAD_BYTES)
    }

    /// Checks that a loaded task is the one that was built.
    pub fn check(&self, task: &Task) {
        assert_eq!(*task, self.task(task.id.partition(), task.id.sequence().get()));
    }

    /// The average size of an encoded task (by the codec of the stores).
    pub fn record_bytes(&self) -> f64 {
        const SAMPLE: u64 = 10_000;
        let mut out = Vec::new();
        (0..SAMPLE)
            .for_each(|sequence| put_task(&mut out, &self.task(PartitionId::FIRST, sequence)));
        out.len() as f64 / SAMPLE as f64
    }
}

pub fn id_of(partition: PartitionId, sequence: u64) -> TaskId {
    let mut random = TaskRandom(u64::from(partition.get()) << 48 | sequence);
    let millis = random.below((DAY * DAYS).as_millis() as u64);
    TaskId::new(NOW.after(Duration::from_millis(millis)), partition, epoch(), number(sequence))
}

pub fn key_of(partition: PartitionId, sequence: u64) -> TaskKey {
    TaskKey::new(&format!("device/{partition}/{sequence:06}")).expect("a valid key")
}

pub fn epoch() -> Epoch {
    Epoch::new(EPOCH).expect("one")
}

fn number(sequence: u64) -> Sequence {
    Sequence::new(sequence).expect("a bench makes fewer than 2^42 tasks")
}

/// Hashes an id. Two sets of ids with the same size and the same sum of hashes are equal.
pub fn hash(id: TaskId) -> u64 {
    let bits = id.as_u128();
    TaskRandom((bits >> 64) as u64 ^ (bits as u64).rotate_left(32)).next()
}

/// SplitMix64.
pub struct TaskRandom(pub u64);

impl TaskRandom {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
