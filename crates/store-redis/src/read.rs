//! Reads: tasks by time, key and id, dead letters, history, counts.
//!
//! A result without a limit of its own is read in pages, each with one call of one script, so that
//! no reply is large and no call blocks Redis for long. One page is one moment; several pages may
//! see several batches.

use punctual_core::{DeadLetter, FireId, FireRecord, Namespace, Task, TaskId, TaskKey, Timestamp};
use punctual_store::{Counts, Filter, Head, Page, Position, StoreError};
use redis::Value;

use crate::format::codec;
use crate::format::keys::PartitionKeys;
use crate::store::RedisStore;
use crate::transport::reply::{self, damaged};
use crate::transport::script::{self, ScriptCall};

/// The largest number of tasks in one page of a load: some milliseconds of Redis.
const LOADED_MAX: usize = 2000;
/// The largest number of tasks of each sorted set in one page of a list.
const LISTED_MAX: usize = 500;
/// The largest number of tasks that one page of a list reads.
const LIST_READS_MAX: usize = 4096;
/// The size in bytes at which a page ends; it has at least one task.
const PAGE_BYTES_MAX: usize = 8 << 20;
/// The largest number of ids in one call: far below the limit of the Lua stack, and the largest
/// tasks are some tens of megabytes together.
const IDS_MAX: usize = 128;
/// The largest number of keys in one call: heads are small.
const NAMES_MAX: usize = 1000;
/// The largest number of dead letters in one page.
const LETTERS_MAX: usize = 1000;
/// The largest number of records in one call.
const RECORDS_MAX: usize = 1000;

/// Consecutive tasks of a sorted set, and whether there are more.
struct TaskRange {
    tasks: Vec<Task>,
    more: bool,
}

impl RedisStore {
    pub(crate) async fn read_due(
        &self,
        keys: &PartitionKeys,
        mut after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StoreError> {
        let mut tasks: Vec<Task> = Vec::new();
        while tasks.len() < limit {
            let wanted = (limit - tasks.len()).min(LOADED_MAX);
            let until = until.as_millis().to_string();
            let sets = [keys.due.as_str()];
            let [page] = self.read_after(keys, sets, after, &until, wanted).await?;
            let more = page.more;
            tasks.extend(page.tasks);
            match tasks.last() {
                Some(last) if more => after = Position::of(last),
                _ => break,
            }
        }
        Ok(tasks)
    }

    async fn read_after<const N: usize>(
        &self,
        keys: &PartitionKeys,
        sets: [&str; N],
        after: Position,
        until: &str,
        limit: usize,
    ) -> Result<[TaskRange; N], StoreError> {
        let call = ScriptCall::new(
            &script::LOAD,
            [keys.tasks.as_str(), &keys.late].into_iter().chain(sets),
        )
        .number(after.fire_at.as_millis())
        .arg(codec::id(after.id))
        .arg(until)
        .number(limit as u64)
        .number(PAGE_BYTES_MAX as u64);
        let pages = reply::tuple::<N>(self.reads.call(&call).await?)?;
        let mut read = Vec::with_capacity(N);
        for page in pages {
            read.push(self.read_page(page)?);
        }
        read.try_into().map_err(|_| reply::unexpected("pages"))
    }

    fn read_page(&self, page: Value) -> Result<TaskRange, StoreError> {
        let [more, ids, values, postponements] = reply::tuple(page)?;
        let more = reply::integer(&more)? != 0;
        let ids = reply::array(ids)?;
        let (values, postponements) =
            (reply::optional_bytes_list(values)?, reply::optional_bytes_list(postponements)?);
        if ids.len() != values.len()
            || (ids.len() != postponements.len() && !postponements.is_empty())
        {
            return Err(reply::unexpected("as many values as ids"));
        }
        let mut tasks = Vec::with_capacity(ids.len());
        let postponements = postponements.into_iter().chain(std::iter::repeat(None));
        for (id, (value, postponement)) in
            ids.into_iter().zip(values.into_iter().zip(postponements))
        {
            let id = codec::read_id(&reply::bytes(id)?).map_err(damaged("an id"))?;
            let value = value.ok_or_else(|| {
                StoreError::Broken(format!("task {id} is in the order of Redis, but has no body"))
            })?;
            tasks.push(self.read_task(id, &value, postponement.as_deref())?);
        }
        Ok(TaskRange { tasks, more })
    }

    fn read_task(
        &self,
        id: TaskId,
        value: &[u8],
        postponement: Option<&[u8]>,
    ) -> Result<Task, StoreError> {
        codec::read_task(id, value, postponement, &self.interner).map_err(damaged("a task"))
    }

    pub(crate) async fn read_heads(
        &self,
        keys: &PartitionKeys,
        namespace: &Namespace,
        names: &[TaskKey],
    ) -> Result<Vec<Option<Head>>, StoreError> {
        let mut heads = Vec::with_capacity(names.len());
        for names in names.chunks(NAMES_MAX) {
            let mut call = ScriptCall::new(&script::FIND, [keys.names.as_str(), &keys.late]);
            for key in names {
                let mut name = Vec::new();
                codec::put_name(&mut name, namespace.as_str(), key.as_str());
                call = call.arg(name);
            }
            for (value, postponement) in self.read_pairs(&call, names.len()).await? {
                let head = value.map(|value| codec::read_head(&value, postponement.as_deref()));
                heads.push(head.transpose().map_err(damaged("the head of a task"))?);
            }
        }
        Ok(heads)
    }

    pub(crate) async fn read_tasks(
        &self,
        keys: &PartitionKeys,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        let mut tasks = Vec::with_capacity(ids.len());
        for ids in ids.chunks(IDS_MAX) {
            let mut call = ScriptCall::new(&script::GET, [keys.tasks.as_str(), &keys.late]);
            for id in ids {
                call = call.arg(codec::id(*id));
            }
            for (id, (value, postponement)) in
                ids.iter().zip(self.read_pairs(&call, ids.len()).await?)
            {
                let read = |value: Vec<u8>| self.read_task(*id, &value, postponement.as_deref());
                let living = value.filter(|value| !codec::is_ended(value));
                tasks.push(living.map(read).transpose()?);
            }
        }
        Ok(tasks)
    }

    /// Returns values and postponements, as many as were asked for.
    async fn read_pairs(
        &self,
        call: &ScriptCall<'_>,
        count: usize,
    ) -> Result<impl Iterator<Item = (Option<Vec<u8>>, Option<Vec<u8>>)> + use<>, StoreError> {
        let [values, postponements] = reply::tuple(self.reads.call(call).await?)?;
        let (values, postponements) =
            (reply::optional_bytes_list(values)?, reply::optional_bytes_list(postponements)?);
        if values.len() != count || postponements.len() != count {
            return Err(reply::unexpected("as many values as keys or ids"));
        }
        Ok(values.into_iter().zip(postponements))
    }

    pub(crate) async fn read_list(
        &self,
        keys: &PartitionKeys,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        let limit = limit.max(1);
        let mut after = after.max(Position::before(filter.from));
        let until = match filter.to {
            Timestamp::MAX => "+inf".to_owned(),
            to => to.as_millis().to_string(),
        };
        let (mut items, mut read) = (Vec::new(), 0);
        loop {
            let sets = [keys.due.as_str(), &keys.paused];
            let [due, paused] = self.read_after(keys, sets, after, &until, LISTED_MAX).await?;
            let (tasks, more) = merge(due, paused);
            for task in tasks {
                after = Position::of(&task);
                read += 1;
                if filter.matches(&task) {
                    items.push(task);
                }
                if items.len() >= limit || read >= LIST_READS_MAX {
                    return Ok(Page { items, next: Some(after) });
                }
            }
            if !more {
                return Ok(Page { items, next: None });
            }
        }
    }

    pub(crate) async fn read_dead(
        &self,
        keys: &PartitionKeys,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        let bound = |prefix: &[u8], fire: &[u8]| {
            [prefix, namespace.as_str().as_bytes(), &[0], fire].concat()
        };
        let from = after.map_or_else(|| bound(b"[", b""), |after| bound(b"(", &codec::fire(after)));
        let to = bound(b"[", &[0xff; codec::FIRE_BYTES]);
        let call = ScriptCall::new(&script::DEAD, [keys.dead.as_str(), &keys.letters])
            .arg(from)
            .arg(to)
            .number(limit.clamp(1, LETTERS_MAX) as u64)
            .number(PAGE_BYTES_MAX as u64);
        let [more, fires, letters] = reply::tuple(self.reads.call(&call).await?)?;
        let fires = reply::array(fires)?;
        let mut items = Vec::with_capacity(fires.len());
        for letter in reply::optional_bytes_list(letters)? {
            let letter = letter.ok_or_else(|| {
                StoreError::Broken(
                    "a dead letter is in the order of Redis, but has no value".to_owned(),
                )
            })?;
            items.push(self.decode_letter(&letter)?);
        }
        let more = reply::integer(&more)? != 0;
        let next = items.last().filter(|_| more).map(DeadLetter::fire_id);
        Ok(Page { items, next })
    }

    pub(crate) async fn read_letter(
        &self,
        keys: &PartitionKeys,
        fire_id: FireId,
    ) -> Result<Option<DeadLetter>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(&keys.letters).arg(&codec::fire(fire_id)[..]);
        let letter = reply::optional_bytes(self.reads.command(command, &keys.letters).await?)?;
        letter.map(|letter| self.decode_letter(&letter)).transpose()
    }

    fn decode_letter(&self, bytes: &[u8]) -> Result<DeadLetter, StoreError> {
        punctual_store::codec::read_letter(bytes, &self.interner).map_err(damaged("a dead letter"))
    }

    pub(crate) async fn read_history(
        &self,
        keys: &PartitionKeys,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        let plain = codec::fire(FireId { task: id, nominal_at: id.due() });
        let oldest = codec::fire(FireId { task: id, nominal_at: Timestamp::EPOCH });
        let oldest = [b"[", oldest.as_slice()].concat();
        let mut newest = [b"[", codec::fire_above(id).as_slice()].concat();
        let mut records = Vec::new();
        loop {
            let wanted = (limit - records.len().min(limit)).min(RECORDS_MAX);
            let call = ScriptCall::new(
                &script::HISTORY,
                [keys.tasks.as_str(), &keys.history, &keys.fires],
            )
            .arg(codec::id(id))
            .arg(plain)
            .arg(&newest)
            .arg(&oldest)
            .number(wanted as u64);
            let [first, fires, others] = reply::tuple(self.reads.call(&call).await?)?;
            let fires = reply::array(fires)?;
            for record in reply::optional_bytes_list(others)?.into_iter().flatten() {
                records.push(self.decode_record(&record)?);
            }
            match fires.into_iter().next_back() {
                Some(last) if records.len() < limit => {
                    newest = [b"(", reply::bytes(last)?.as_slice()].concat();
                }
                _ => {
                    let first = reply::optional_bytes(first)?;
                    records.extend(first.map(|first| self.decode_record(&first)).transpose()?);
                    break;
                }
            }
        }
        records.sort_by_key(|record: &FireRecord| std::cmp::Reverse(record.fire_id));
        records.truncate(limit);
        Ok(records)
    }

    fn decode_record(&self, bytes: &[u8]) -> Result<FireRecord, StoreError> {
        codec::read_record(bytes, &self.interner).map_err(damaged("a record"))
    }

    pub(crate) async fn read_counts(
        &self,
        keys: &PartitionKeys,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(&keys.counts);
        for (letter, _) in codec::by_letter(&Counts::default()) {
            let mut field = Vec::new();
            codec::put_count_field(&mut field, namespace.as_str(), letter);
            command.arg(field);
        }
        let values = reply::tuple::<6>(self.reads.command(command, &keys.counts).await?)?;
        let mut numbers = [0; 6];
        for (number, value) in numbers.iter_mut().zip(&values) {
            if *value != Value::Nil {
                *number = reply::integer(value)?;
            }
        }
        Ok(codec::counts_of(numbers))
    }
}

/// Merges two ranges of tasks, in order. If one of them has more tasks, the merged range is
/// complete only up to its last task; later tasks are left out.
fn merge(due: TaskRange, paused: TaskRange) -> (Vec<Task>, bool) {
    let last = |page: &TaskRange| page.tasks.last().filter(|_| page.more).map(Position::of);
    let complete_until = [last(&due), last(&paused)].into_iter().flatten().min();
    let mut tasks = [due.tasks, paused.tasks].concat();
    tasks.sort_by_key(Position::of);
    if let Some(complete_until) = complete_until {
        tasks.retain(|task| Position::of(task) <= complete_until);
    }
    (tasks, complete_until.is_some())
}
