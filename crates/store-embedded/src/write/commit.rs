//! The bytes of a commit, as they are in the journal.
//!
//! A commit is an encoded batch (`encode`), a lease, or a sweep. `state` applies the steps that
//! [`Commit::read`] returns, both for a new commit and for a replayed one, so a replay cannot
//! differ from what happened.
//! Bodies of tasks are slices of the commit's bytes: once encoded they are not copied until they
//! are written to a run.

use bytes::Bytes;
use punctual_core::{
    DeadLetter, FireId, FireRecord, Lease, LetterGroup, PartitionId, Task, TaskId, Timestamp,
};
use punctual_store::codec::{
    CodecError, Reader, put_body, put_bytes, put_fire_id, put_letter, put_record, put_signed,
    put_task_id, put_timestamp, put_varint,
};
use punctual_store::{BatchNo, Counts, DueMinute};

use crate::catalog::{put_counts, put_lease, read_counts, read_lease};
use crate::state::relocation::Moved;

const BATCH: u8 = 1;
const LEASE: u8 = 2;
const SWEEP: u8 = 3;
const EMPTY: u8 = 4;
/// As `BATCH`, with changes of due counts.
const BATCH_DUE: u8 = 5;
/// As `SWEEP`, with the groups of the letters.
const SWEEP_GROUPS: u8 = 6;

const FILE: u8 = 1;
const FILE_NEW: u8 = 2;
const POSTPONE: u8 = 3;
const END: u8 = 4;
const RECORD: u8 = 5;
const LETTER: u8 = 6;
const FORGET: u8 = 7;
/// As `POSTPONE`, with the time of the touch.
const TOUCH: u8 = 8;
const SERIES: u8 = 9;
const JOIN_GROUP: u8 = 10;
const LEAVE_GROUP: u8 = 11;

/// One change of the state. A `Change` of the contract is one or several of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommitStep {
    /// Files a task, and replaces an earlier entry of the same id.
    File {
        id: TaskId,
        fire_at: Timestamp,
        body: Bytes,
        /// Whether the id cannot have an entry yet.
        new: bool,
    },
    Postpone {
        id: TaskId,
        moved: Moved,
    },
    /// Ends a task. The record that follows contains its key.
    End {
        id: TaskId,
    },
    /// A fire has ended; `frees` its key if its task ended with it.
    Record {
        record: Bytes,
        frees: bool,
    },
    Letter {
        fire_id: FireId,
        letter: Bytes,
    },
    DeleteLetter {
        fire_id: FireId,
    },
    /// A letter counts in a group from now on.
    JoinGroup {
        fire_id: FireId,
        namespace: String,
        group: LetterGroup,
        died_at: Timestamp,
    },
    /// A letter no longer counts in a group.
    LeaveGroup {
        fire_id: FireId,
        namespace: String,
        group: LetterGroup,
    },
    /// A series is listed at another time, from now on or no longer.
    Series {
        id: TaskId,
        namespace: String,
        was: Option<Timestamp>,
        now: Option<Timestamp>,
    },
}

/// Changes of due counts of one namespace, in the order of minutes.
pub(crate) type DueOfNamespace<N> = (N, Vec<(DueMinute, i64)>);
/// A letter that leaves its group.
pub(crate) type GroupedLetter<N> = (FireId, N, LetterGroup);

/// A commit that was read.
#[derive(Debug)]
pub(crate) enum Commit {
    Batch {
        partition: PartitionId,
        number: BatchNo,
        counts: Vec<(String, Counts)>,
        due: Vec<DueOfNamespace<String>>,
        steps: CommitSteps,
    },
    Lease {
        lease: Lease,
        /// Whether it is a new epoch, for which batches are numbered from the first again.
        acquired: bool,
        now: Timestamp,
    },
    Sweep {
        partition: PartitionId,
        counts: Vec<(String, Counts)>,
        forgotten: Vec<FireId>,
        groups: Vec<GroupedLetter<String>>,
        now: Timestamp,
    },
    /// Changes nothing; used to wait for earlier commits.
    Empty,
}

/// The steps of a commit. Each is decoded when it is wanted: a batch has thousands, and a list of
/// them would be larger than a cache.
#[derive(Debug)]
pub(crate) struct CommitSteps {
    commit: Bytes,
    /// Where the next step begins.
    at: usize,
}

impl Iterator for CommitSteps {
    type Item = Result<CommitStep, CodecError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut reader = Reader::new(self.commit.get(self.at..)?);
        if reader.rest().is_empty() {
            return None;
        }
        let step = read_step(&self.commit, &mut reader);
        // Nothing is read after damage.
        let left = if step.is_ok() { reader.rest().len() } else { 0 };
        self.at = self.commit.len() - left;
        Some(step)
    }
}

/// Encodes the steps of a batch.
#[derive(Debug)]
pub(crate) struct CommitWriter {
    out: Vec<u8>,
}

impl CommitWriter {
    pub(crate) fn batch(
        partition: PartitionId,
        number: BatchNo,
        counts: &[(&str, Counts)],
        due: &[DueOfNamespace<&str>],
        bytes_expected: usize,
    ) -> Self {
        let mut out = Vec::with_capacity(bytes_expected);
        out.push(if due.is_empty() { BATCH } else { BATCH_DUE });
        put_varint(&mut out, u64::from(partition.get()));
        put_varint(&mut out, number.get());
        put_all_counts(&mut out, counts);
        if !due.is_empty() {
            put_due(&mut out, due);
        }
        Self { out }
    }

    pub(crate) fn series(
        &mut self,
        id: TaskId,
        namespace: &str,
        was: Option<Timestamp>,
        now: Option<Timestamp>,
    ) {
        if was == now {
            return;
        }
        self.out.push(SERIES);
        put_task_id(&mut self.out, id);
        put_bytes(&mut self.out, namespace.as_bytes());
        self.out.push(u8::from(was.is_some()) | u8::from(now.is_some()) << 1);
        for at in [was, now].into_iter().flatten() {
            put_timestamp(&mut self.out, at);
        }
    }

    pub(crate) fn join_group(&mut self, letter: &DeadLetter, group: &LetterGroup) {
        self.out.push(JOIN_GROUP);
        let namespace = letter.task.definition.namespace.as_str();
        put_group(&mut self.out, letter.fire_id(), namespace, group);
        put_timestamp(&mut self.out, letter.died_at);
    }

    pub(crate) fn leave_group(&mut self, fire_id: FireId, namespace: &str, group: &LetterGroup) {
        self.out.push(LEAVE_GROUP);
        put_group(&mut self.out, fire_id, namespace, group);
    }

    pub(crate) fn file(&mut self, task: &Task) {
        self.out.push(FILE);
        self.task(task);
    }

    pub(crate) fn file_new(&mut self, task: &Task) {
        self.out.push(FILE_NEW);
        self.task(task);
    }

    fn task(&mut self, task: &Task) {
        put_task_id(&mut self.out, task.id);
        put_timestamp(&mut self.out, task.fire_at);
        self.sized(|out| put_body(out, task));
    }

    /// Writes a length and then the bytes. The length has a fixed width, so that nothing is encoded
    /// twice or moved.
    fn sized(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        write(&mut self.out);
        let length = u32::try_from(self.out.len() - at - 4).expect("a task is far smaller");
        self.out[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }

    pub(crate) fn postpone(&mut self, id: TaskId, moved: Moved) {
        self.out.push(if moved.updated_at.is_some() { TOUCH } else { POSTPONE });
        put_task_id(&mut self.out, id);
        moved.put(&mut self.out);
    }

    pub(crate) fn end(&mut self, id: TaskId) {
        self.out.push(END);
        put_task_id(&mut self.out, id);
    }

    pub(crate) fn record(&mut self, record: &FireRecord, frees: bool) {
        self.out.extend_from_slice(&[RECORD, u8::from(frees)]);
        self.sized(|out| put_record(out, record));
    }

    pub(crate) fn letter(&mut self, letter: &DeadLetter) {
        self.out.push(LETTER);
        put_fire_id(&mut self.out, letter.fire_id());
        self.sized(|out| put_letter(out, letter));
    }

    pub(crate) fn forget(&mut self, fire_id: FireId) {
        self.out.push(FORGET);
        put_fire_id(&mut self.out, fire_id);
    }

    pub(crate) fn finish(self) -> Bytes {
        self.out.into()
    }
}

/// A lease that was acquired, renewed or released.
pub(crate) fn lease_commit(lease: &Lease, acquired: bool, now: Timestamp) -> Bytes {
    let mut out = vec![LEASE, u8::from(acquired)];
    put_timestamp(&mut out, now);
    put_lease(&mut out, lease);
    out.into()
}

/// Deletes dead letters that are past their retention.
pub(crate) fn sweep_commit(
    partition: PartitionId,
    counts: &[(&str, Counts)],
    forgotten: &[FireId],
    groups: &[GroupedLetter<&str>],
    now: Timestamp,
) -> Bytes {
    let mut out = vec![if groups.is_empty() { SWEEP } else { SWEEP_GROUPS }];
    put_varint(&mut out, u64::from(partition.get()));
    put_timestamp(&mut out, now);

    put_all_counts(&mut out, counts);
    put_varint(&mut out, forgotten.len() as u64);
    for fire_id in forgotten {
        put_fire_id(&mut out, *fire_id);
    }
    if !groups.is_empty() {
        put_varint(&mut out, groups.len() as u64);
        for (fire_id, namespace, group) in groups {
            put_group(&mut out, *fire_id, namespace, group);
        }
    }
    out.into()
}

/// A commit that changes nothing.
pub(crate) fn empty_commit() -> Bytes {
    Bytes::from_static(&[EMPTY])
}

fn put_all_counts(out: &mut Vec<u8>, counts: &[(&str, Counts)]) {
    put_varint(out, counts.len() as u64);
    for (namespace, counts) in counts {
        put_bytes(out, namespace.as_bytes());
        put_counts(out, counts);
    }
}

fn put_due(out: &mut Vec<u8>, due: &[DueOfNamespace<&str>]) {
    put_varint(out, due.len() as u64);
    for (namespace, minutes) in due {
        put_bytes(out, namespace.as_bytes());
        put_varint(out, minutes.len() as u64);
        let mut last = 0;
        for (minute, by) in minutes {
            put_varint(out, u64::from(minute.get().wrapping_sub(last)));
            put_signed(out, *by);
            last = minute.get();
        }
    }
}

fn put_group(out: &mut Vec<u8>, fire_id: FireId, namespace: &str, group: &LetterGroup) {
    put_fire_id(out, fire_id);
    for text in [namespace, &group.reason, &group.target] {
        put_bytes(out, text.as_bytes());
    }
}

impl Commit {
    /// Decodes a commit.
    pub(crate) fn read(bytes: &Bytes) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        match reader.byte()? {
            tag @ (BATCH | BATCH_DUE) => {
                let partition = read_partition(&mut reader)?;
                let number = BatchNo::new(reader.varint()?);
                let counts = read_all_counts(&mut reader)?;
                let due = match tag {
                    BATCH_DUE => read_due(&mut reader)?,
                    _ => Vec::new(),
                };
                let at = bytes.len() - reader.rest().len();
                let steps = CommitSteps { commit: bytes.clone(), at };
                Ok(Self::Batch { partition, number, counts, due, steps })
            }
            LEASE => Ok(Self::Lease {
                acquired: reader.byte()? != 0,
                now: reader.timestamp()?,
                lease: read_lease(&mut reader)?,
            }),
            tag @ (SWEEP | SWEEP_GROUPS) => {
                let partition = read_partition(&mut reader)?;
                let now = reader.timestamp()?;

                let counts = read_all_counts(&mut reader)?;
                let mut forgotten = Vec::new();
                for _ in 0..reader.varint()? {
                    forgotten.push(reader.fire_id()?);
                }
                let mut groups = Vec::new();
                if tag == SWEEP_GROUPS {
                    for _ in 0..reader.varint()? {
                        groups.push(read_group(&mut reader)?);
                    }
                }
                Ok(Self::Sweep { partition, counts, forgotten, groups, now })
            }
            EMPTY => Ok(Self::Empty),
            _ => Err(CodecError::Invalid("commit")),
        }
    }
}

fn read_step(commit: &Bytes, reader: &mut Reader<'_>) -> Result<CommitStep, CodecError> {
    Ok(match reader.byte()? {
        tag @ (FILE | FILE_NEW) => CommitStep::File {
            id: reader.task_id()?,
            fire_at: reader.timestamp()?,
            body: read_sized(commit, reader)?,
            new: tag == FILE_NEW,
        },
        POSTPONE => CommitStep::Postpone {
            id: reader.task_id()?,
            moved: Moved::read_without_update(reader)?,
        },
        TOUCH => CommitStep::Postpone { id: reader.task_id()?, moved: Moved::read(reader)? },
        END => CommitStep::End { id: reader.task_id()? },
        RECORD => {
            CommitStep::Record { frees: reader.byte()? != 0, record: read_sized(commit, reader)? }
        }
        LETTER => {
            CommitStep::Letter { fire_id: reader.fire_id()?, letter: read_sized(commit, reader)? }
        }
        FORGET => CommitStep::DeleteLetter { fire_id: reader.fire_id()? },
        SERIES => read_series(reader)?,
        JOIN_GROUP => {
            let (fire_id, namespace, group) = read_group(reader)?;
            CommitStep::JoinGroup { fire_id, namespace, group, died_at: reader.timestamp()? }
        }
        LEAVE_GROUP => {
            let (fire_id, namespace, group) = read_group(reader)?;
            CommitStep::LeaveGroup { fire_id, namespace, group }
        }
        _ => return Err(CodecError::Invalid("step")),
    })
}

fn read_series(reader: &mut Reader<'_>) -> Result<CommitStep, CodecError> {
    let (id, namespace, bits) = (reader.task_id()?, reader.text()?.to_owned(), reader.byte()?);
    let mut time = |bit| (bits & bit != 0).then(|| reader.timestamp()).transpose();
    Ok(CommitStep::Series { id, namespace, was: time(1)?, now: time(2)? })
}

fn read_group(reader: &mut Reader<'_>) -> Result<GroupedLetter<String>, CodecError> {
    let fire_id = reader.fire_id()?;
    let [namespace, reason, target] = [reader.text()?, reader.text()?, reader.text()?];
    let group = LetterGroup { reason: reason.to_owned(), target: target.to_owned() };
    Ok((fire_id, namespace.to_owned(), group))
}

fn read_due(reader: &mut Reader<'_>) -> Result<Vec<DueOfNamespace<String>>, CodecError> {
    let mut due = Vec::new();
    for _ in 0..reader.varint()? {
        let namespace = reader.text()?.to_owned();
        let (mut minutes, mut last) = (Vec::new(), 0u32);
        for _ in 0..reader.varint()? {
            last = last.wrapping_add(reader.small("minute")?);
            minutes.push((DueMinute::new(last), reader.signed()?));
        }
        due.push((namespace, minutes));
    }
    Ok(due)
}

fn read_sized(commit: &Bytes, reader: &mut Reader<'_>) -> Result<Bytes, CodecError> {
    let length = reader.take(4)?.try_into().map_err(|_| CodecError::Short("length"))?;
    let slice = reader.take(u32::from_le_bytes(length) as usize)?;
    Ok(commit.slice_ref(slice))
}

fn read_partition(reader: &mut Reader<'_>) -> Result<PartitionId, CodecError> {
    PartitionId::new(reader.small("partition")?).ok_or(CodecError::Invalid("partition"))
}

fn read_all_counts(reader: &mut Reader<'_>) -> Result<Vec<(String, Counts)>, CodecError> {
    let mut counts = Vec::new();
    for _ in 0..reader.varint()? {
        let namespace = reader.text()?.to_owned();
        counts.push((namespace, read_counts(reader)?));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use punctual_core::{
        BrokerId, DeadReason, Due, Epoch, FireEnd, Namespace, NewTask, Payload, Queue, Schedule,
        Seat, Sequence, Target, TaskKey, Version,
    };
    use punctual_store::codec::{Interner, read_body, read_letter, read_record};

    use super::*;
    use crate::golden::assert_golden;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn partition() -> PartitionId {
        PartitionId::new(3).expect("a partition")
    }

    fn task() -> Task {
        let id = TaskId::new(
            NOW,
            partition(),
            Epoch::new(2).expect("an epoch"),
            Sequence::new(5).expect("a sequence"),
        );
        let target = Target::Queue(Queue::new("orders").expect("a queue"));
        let namespace = Namespace::new("shop").expect("a namespace");
        let mut definition = NewTask::new(namespace, Schedule::Once(Due::At(NOW)), target);
        definition.key = Some(TaskKey::new("key/5").expect("a key"));
        definition.payload = Payload::Json(b"{\"number\":5}".to_vec().into());
        Task::new(id, Arc::new(definition), NOW, Version::FIRST)
    }

    fn all(steps: CommitSteps) -> Vec<CommitStep> {
        steps.collect::<Result<_, _>>().expect("steps")
    }

    fn counts() -> Counts {
        Counts { scheduled: 1, paused: -2, done: 3, dead: 4, cancelled: 5, dead_letters: 600 }
    }

    #[test]
    fn a_batch_has_the_bytes_of_format_2() {
        let (task, fire_id) = (task(), task().fire().id);
        let record = FireRecord::of(&task, FireEnd::Done, NOW);
        let letter = DeadLetter { task: task.clone(), died_at: NOW, reason: DeadReason::Exhausted };
        let number = BatchNo::new(777);
        let mut commit = CommitWriter::batch(partition(), number, &[("shop", counts())], &[], 0);
        commit.file_new(&task);
        commit.file(&task);
        let moved = Moved {
            fire_at: Timestamp::from_millis(1_900_000_000_000),
            version: Version::new(9),
            updated_at: None,
        };
        commit.postpone(task.id, moved);
        commit.end(task.id);
        commit.record(&record, true);
        commit.letter(&letter);
        commit.forget(fire_id);
        let golden = Bytes::from(assert_golden("commit_batch", &commit.finish()));

        let read = Commit::read(&golden).expect("a commit");
        let Commit::Batch { partition: of, number: no, counts: counted, steps, .. } = read else {
            panic!("{read:?}");
        };
        assert_eq!((of, no, counted), (partition(), number, vec![("shop".to_owned(), counts())]));
        let interner = Interner::default();
        let steps = all(steps);
        let [new, file, postpone, end, ended, dead, forget] = &steps[..] else {
            panic!("{steps:?}");
        };
        for (step, is_new) in [(new, true), (file, false)] {
            let CommitStep::File { id, fire_at, body, new } = step else { panic!("{step:?}") };
            assert_eq!(*new, is_new);
            assert_eq!(read_body(*id, *fire_at, body, &interner), Ok(task.clone()));
        }
        assert_eq!(*postpone, CommitStep::Postpone { id: task.id, moved });
        assert_eq!(*end, CommitStep::End { id: task.id });
        let CommitStep::Record { record: bytes, frees: true } = ended else { panic!("{ended:?}") };
        assert_eq!(read_record(bytes, &interner), Ok(record));
        let CommitStep::Letter { fire_id: of, letter: bytes } = dead else { panic!("{dead:?}") };
        assert_eq!((*of, read_letter(bytes, &interner)), (fire_id, Ok(letter)));
        assert_eq!(*forget, CommitStep::DeleteLetter { fire_id });
    }

    #[test]
    fn nothing_is_read_after_a_damaged_step() {
        let mut commit = CommitWriter::batch(partition(), BatchNo::new(777), &[], &[], 0);
        commit.end(task().id);
        let mut bytes = commit.finish().to_vec();
        bytes.extend([END, 0, FORGET]);
        let Ok(Commit::Batch { mut steps, .. }) = Commit::read(&bytes.into()) else {
            panic!("a batch")
        };
        assert_eq!(steps.next(), Some(Ok(CommitStep::End { id: task().id })));
        assert!(matches!(steps.next(), Some(Err(_))));
        assert_eq!(steps.next(), None);
    }

    #[test]
    fn due_counts_series_and_groups_have_their_bytes() {
        let (task, fire_id) = (task(), task().fire().id);
        let letter = DeadLetter { task: task.clone(), died_at: NOW, reason: DeadReason::Expired };
        let group = letter.group();
        let minute = DueMinute::of(NOW);
        let later = DueMinute::new(minute.get() + 300);
        let due = [("shop", vec![(minute, 2), (later, -1)]), ("other", vec![(minute, 1)])];
        let mut commit = CommitWriter::batch(partition(), BatchNo::new(777), &[], &due, 0);
        let (was, now) = (Some(NOW), Some(later.start()));
        commit.series(task.id, "shop", was, now);
        commit.series(task.id, "shop", None, now);
        commit.series(task.id, "shop", now, now);
        commit.join_group(&letter, &group);
        commit.leave_group(fire_id, "shop", &group);
        let golden = Bytes::from(assert_golden("commit_batch_due", &commit.finish()));
        let Ok(Commit::Batch { due: read, steps, .. }) = Commit::read(&golden) else {
            panic!("a batch")
        };
        assert_eq!(read, due.map(|(name, minutes)| (name.to_owned(), minutes)));
        let (id, namespace) = (task.id, "shop".to_owned());
        let of = || (namespace.clone(), group.clone());
        let series = |was| CommitStep::Series { id, namespace: namespace.clone(), was, now };
        let join =
            CommitStep::JoinGroup { fire_id, namespace: of().0, group: of().1, died_at: NOW };
        let leave = CommitStep::LeaveGroup { fire_id, namespace: of().0, group: of().1 };
        assert_eq!(all(steps), [series(was), series(None), join, leave]);

        let sweep = sweep_commit(partition(), &[], &[fire_id], &[(fire_id, "shop", of().1)], NOW);
        let golden = Bytes::from(assert_golden("commit_sweep_groups", &sweep));
        let Ok(Commit::Sweep { groups, .. }) = Commit::read(&golden) else { panic!("a sweep") };
        assert_eq!(groups, [(fire_id, of().0, of().1)]);
    }

    #[test]
    fn a_touch_takes_three_bytes_more_than_a_postponement_without_a_time() {
        let fire_at = Timestamp::from_millis(1_900_000_000_000);
        let at = |updated_at| Moved { fire_at, version: Version::new(9), updated_at };
        let bytes = |moved| {
            let mut commit = CommitWriter::batch(partition(), BatchNo::new(777), &[], &[], 0);
            commit.postpone(task().id, moved);
            commit.finish()
        };
        // A watch of a quarter of an hour.
        let touched = at(Some(Timestamp::from_millis(1_900_000_000_000 - 900_000)));
        assert_eq!(bytes(touched).len(), bytes(at(None)).len() + 3);
        let golden = Bytes::from(assert_golden("commit_touch", &bytes(touched)));
        let Ok(Commit::Batch { steps, .. }) = Commit::read(&golden) else { panic!("a batch") };
        assert_eq!(all(steps), [CommitStep::Postpone { id: task().id, moved: touched }]);
    }

    #[test]
    fn a_lease_has_the_bytes_of_format_2() {
        let broker = BrokerId::new("10.0.0.2:7400");
        let epoch = Epoch::new(300).expect("an epoch");
        let seats = [(Seat::Leader, false), (Seat::Partition(partition()), true)];
        for (seat, acquired) in seats {
            let lease = Lease { seat, broker: broker.clone(), epoch, until: NOW };
            let name = if acquired { "commit_lease_partition" } else { "commit_lease_leader" };
            let golden = Bytes::from(assert_golden(name, &lease_commit(&lease, acquired, NOW)));
            let read = Commit::read(&golden).expect("a commit");
            let Commit::Lease { lease: read, acquired: taken, now } = read else {
                panic!("{read:?}");
            };
            assert_eq!((read, taken, now), (lease, acquired, NOW));
        }
    }

    #[test]
    fn a_sweep_and_an_empty_commit_have_the_bytes_of_format_2() {
        let fires = [task().fire().id];
        let sweep = sweep_commit(partition(), &[("shop", counts())], &fires, &[], NOW);
        let golden = Bytes::from(assert_golden("commit_sweep", &sweep));
        let read = Commit::read(&golden).expect("a commit");
        let Commit::Sweep { partition: of, counts: moved, forgotten, now, .. } = read else {
            panic!("{read:?}");
        };
        assert_eq!((of, moved), (partition(), vec![("shop".to_owned(), counts())]));
        assert_eq!((&forgotten[..], now), (&fires[..], NOW));
        let golden = Bytes::from(assert_golden("commit_empty", &empty_commit()));
        assert!(matches!(Commit::read(&golden), Ok(Commit::Empty)));
    }
}
