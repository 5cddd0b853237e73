//! Reads: tasks by time, key and id, dead letters, history.
//!
//! A value that cannot be decoded, or that is not of the task or fire under which it is stored, is
//! damaged (`damage`): pages leave it out, other reads return the error that names it.
//!
//! A result without a limit of its own is read in pages, each with one call of one script, so that
//! no reply is large and no call blocks Redis for long. One page is one moment; several pages may
//! see several batches. Pages of ended fires are in `fires`, counts in `namespaces`, `due` and
//! `letter_groups`.

mod candidates;
mod due;
mod fires;
mod letter_groups;
mod namespaces;

use std::borrow::Cow;
use std::fmt::Display;

use punctual_core::{DeadLetter, FireId, FireRecord, Namespace, Task, TaskId, TaskKey, Timestamp};
use punctual_store::codec::{CodecError, Decoded};
use punctual_store::{Filter, HISTORY_BYTES_MAX, Head, KindFilter, Page, Position, StoreError};
use redis::Value;

use crate::format::codec::{self, Postponement};
use crate::format::keys::PartitionKeys;
use crate::store::RedisStore;
use crate::transport::reply;
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
/// The size in bytes at which one call for records ends: some milliseconds of Redis.
const RECORDS_BYTES_MAX: usize = 1 << 20;

/// Consecutive entries of a sorted set.
struct TaskRange {
    /// The tasks of the entries that can be read.
    tasks: Vec<Task>,
    /// The number of entries.
    entries: usize,
    /// The time of the last entry.
    last_score: f64,
    /// The position of the last entry, if there are more.
    end: Option<Position>,
}

/// The sorted sets of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskSet<'a> {
    Due,
    Paused,
    /// The series of a namespace, scheduled or paused.
    Series(&'a str),
}

/// The entries whose times are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryTimes {
    /// That of the last entry. All are read if the order of the tasks shows that an entry is not at
    /// the time of its task; if the order is right, so is the page.
    Last,
    /// Those of all entries, so that what is left out does not depend on the other entries.
    All,
}

/// The sets from which a list is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListedSets {
    /// Those of all tasks.
    All,
    /// That of the series of the namespace.
    Series,
}

/// Consecutive dead letters.
pub(crate) struct LetterRange {
    /// The letters that can be read.
    pub(crate) letters: Vec<DeadLetter>,
    /// The number of members.
    entries: usize,
    /// The last member, if there are any.
    pub(crate) last: Option<Vec<u8>>,
    /// Whether there are more.
    pub(crate) more: bool,
}

impl TaskRange {
    /// Whether the tasks are where their set has them, as far as their order tells.
    fn is_in_order(&self, set: TaskSet<'_>, after: Position) -> bool {
        let positions = self.tasks.iter().map(Position::of);
        let ascending = std::iter::once(after).chain(positions).is_sorted_by(|a, b| a < b);
        let within = self.tasks.last().is_none_or(|last| time_of(last) <= self.last_score);
        ascending && within && self.tasks.iter().all(|task| set.has(task))
    }
}

/// Returns the time of a task as sorted sets have it. Doubles are exact up to the year 9999.
#[expect(clippy::cast_precision_loss, reason = "exact")]
fn time_of(task: &Task) -> f64 {
    task.fire_at.as_millis() as f64
}

impl TaskSet<'_> {
    /// Returns whether a task belongs to the set.
    fn has(self, task: &Task) -> bool {
        match self {
            Self::Due => !codec::is_paused(task),
            Self::Paused => codec::is_paused(task),
            Self::Series(namespace) => {
                let definition = &task.definition;
                definition.schedule.kind().is_series() && definition.namespace.as_str() == namespace
            }
        }
    }

    fn key(self, keys: &PartitionKeys) -> Cow<'_, str> {
        match self {
            Self::Due => Cow::Borrowed(&keys.due),
            Self::Paused => Cow::Borrowed(&keys.paused),
            Self::Series(namespace) => Cow::Owned(keys.series(namespace)),
        }
    }
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
            let [page] = self
                .read_after(keys, [TaskSet::Due], after, &until, wanted, EntryTimes::Last)
                .await?;
            tasks.extend(page.tasks);
            match page.end {
                Some(end) => after = end,
                None => break,
            }
        }
        Ok(tasks)
    }

    /// Reads the next tasks of a set, and the position of the last entry if there are more.
    pub(crate) async fn read_some(
        &self,
        keys: &PartitionKeys,
        set: TaskSet<'_>,
        after: Position,
        limit: usize,
    ) -> Result<(Vec<Task>, Option<Position>), StoreError> {
        let [page] = self.read_after(keys, [set], after, "+inf", limit, EntryTimes::Last).await?;
        Ok((page.tasks, page.end))
    }

    /// Reads the next entries of sorted sets. If their tasks are not in order, an entry is not at
    /// the time of its task; then the page is read again with all times, to find it.
    async fn read_after<const N: usize>(
        &self,
        keys: &PartitionKeys,
        sets: [TaskSet<'_>; N],
        after: Position,
        until: &str,
        limit: usize,
        mut times: EntryTimes,
    ) -> Result<[TaskRange; N], StoreError> {
        // No task is due before 1970, but a damaged entry may be.
        let fire_at = match after {
            Position::START => "-inf".to_owned(),
            _ => after.fire_at.as_millis().to_string(),
        };
        let set_keys = sets.map(|set| set.key(keys));
        let all = [keys.tasks.as_str(), &keys.late];
        let all: Vec<&str> = all.into_iter().chain(set_keys.iter().map(AsRef::as_ref)).collect();
        loop {
            let call = ScriptCall::new(&script::LOAD, all.iter().copied())
                .arg(&fire_at)
                .arg(codec::id(after.id))
                .arg(until)
                .number(limit as u64)
                .number(PAGE_BYTES_MAX as u64)
                .number(u8::from(times == EntryTimes::All));
            let pages = reply::tuple::<N>(self.reads.call(&call).await?)?;
            let mut read = Vec::with_capacity(N);
            for (set, page) in sets.into_iter().zip(pages) {
                read.push(self.read_page(keys, set, page, times)?);
            }
            let is_in_order =
                |(range, set): (&TaskRange, TaskSet<'_>)| range.is_in_order(set, after);
            if times == EntryTimes::Last && !read.iter().zip(sets).all(is_in_order) {
                times = EntryTimes::All;
                continue;
            }
            return read.try_into().map_err(|_| reply::unexpected("pages"));
        }
    }

    /// Reads a page. A task that is damaged is left out.
    fn read_page(
        &self,
        keys: &PartitionKeys,
        set: TaskSet<'_>,
        page: Value,
        times: EntryTimes,
    ) -> Result<TaskRange, StoreError> {
        let [more, members, scores, values, postponements] = reply::tuple(page)?;
        let more = reply::integer(&more)? != 0;
        let (members, scores) = (reply::array(members)?, reply::array(scores)?);
        let (values, postponements) =
            (reply::optional_bytes_list(values)?, reply::optional_bytes_list(postponements)?);
        let entries = members.len();
        let timed = if times == EntryTimes::All { entries } else { entries.min(1) };
        if scores.len() != timed
            || values.len() != entries
            || (postponements.len() != entries && !postponements.is_empty())
        {
            return Err(reply::unexpected("as many values as ids"));
        }
        let scores = scores.iter().map(reply::float).collect::<Result<Vec<_>, _>>()?;
        let last_score = scores.last().copied().unwrap_or(0.0);
        let mut tasks = Vec::with_capacity(entries);
        let mut end = None;
        let postponements = postponements.into_iter().chain(std::iter::repeat(None));
        let values = values.into_iter().zip(postponements);
        for (index, (member, (value, postponement))) in members.into_iter().zip(values).enumerate()
        {
            let member = reply::bytes(member)?;
            let score = scores.get(index).copied().filter(|_| times == EntryTimes::All);
            if index + 1 == entries && more {
                end = codec::position(last_score, &member);
            }
            let entry = TaskEntry { set, member, score, value, postponement };
            // What is damaged is logged and counted.
            tasks.extend(self.read_entry(keys, entry).ok());
        }
        Ok(TaskRange { tasks, entries, last_score, end })
    }

    fn read_entry(&self, keys: &PartitionKeys, entry: TaskEntry<'_>) -> Result<Task, StoreError> {
        let TaskEntry { set, member, score, value, postponement } = entry;
        let key = set.key(keys);
        let damaged =
            |why: &dyn Display| self.damage.found("the entry of a task", &key, &member, why);
        let id = codec::read_id(&member).map_err(|error| damaged(&error))?;
        let value = value.ok_or_else(|| damaged(&"the task has no value"))?;
        let task = self.read_task(keys, id, &value, postponement.as_deref())?;
        let is_in_place = score.is_none_or(|score| set.has(&task) && score == time_of(&task));
        if !is_in_place {
            let (state, fire_at) = (task.state, task.fire_at.as_millis());
            return Err(damaged(&format_args!("the task is {state:?} and due at {fire_at}")));
        }
        Ok(task)
    }

    fn read_task(
        &self,
        keys: &PartitionKeys,
        id: TaskId,
        value: &[u8],
        postponement: Option<&[u8]>,
    ) -> Result<Task, StoreError> {
        let field = codec::id(id);
        let task = codec::read_task(id, value, &self.interner)
            .map_err(|error| self.damage.found("the task", &keys.tasks, &field, error))?;
        let postponement = self.read_postponement(keys, &field, postponement)?;
        Ok(match postponement {
            Some(postponement) => postponement.of_task(task),
            None => task,
        })
    }

    fn read_postponement(
        &self,
        keys: &PartitionKeys,
        field: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Option<Postponement>, StoreError> {
        let read = value.map(codec::read_postponement).transpose();
        read.map_err(|error| {
            self.damage.found("the postponement of a task", &keys.late, field, error)
        })
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
            let pairs = self.read_pairs(&call, names.len()).await?;
            for (key, (value, postponement)) in names.iter().zip(pairs) {
                let read = |value: Vec<u8>| {
                    self.read_head(keys, (namespace, key), &value, postponement.as_deref())
                };
                heads.push(value.map(read).transpose()?);
            }
        }
        Ok(heads)
    }

    fn read_head(
        &self,
        keys: &PartitionKeys,
        (namespace, key): (&Namespace, &TaskKey),
        value: &[u8],
        postponement: Option<&[u8]>,
    ) -> Result<Head, StoreError> {
        let head = codec::read_head(value).map_err(|error| {
            let mut name = Vec::new();
            codec::put_name(&mut name, namespace.as_str(), key.as_str());
            self.damage.found("the entry of a key", &keys.names, &name, error)
        })?;
        let postponement = self.read_postponement(keys, &codec::id(head.id), postponement)?;
        Ok(match postponement {
            Some(postponement) => postponement.of_head(head),
            None => head,
        })
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
                let read =
                    |value: Vec<u8>| self.read_task(keys, *id, &value, postponement.as_deref());
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

    /// Returns whether the index of series has all of them: the tasks of an earlier version may not
    /// be counted yet.
    async fn has_all_series(&self, keys: &PartitionKeys) -> Result<bool, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(&keys.counted).arg("epoch").arg("at");
        let [epoch, at] = reply::tuple(self.reads.command(command, &keys.counted).await?)?;
        Ok(epoch != Value::Nil && at == Value::Nil)
    }

    /// Reads the next tasks of a list, and up to where these are all if there are more. Also
    /// returns how many entries were damaged.
    async fn read_listed(
        &self,
        keys: &PartitionKeys,
        (listed, namespace): (ListedSets, &Namespace),
        after: Position,
        until: &str,
    ) -> Result<(Vec<Task>, Option<Position>, usize), StoreError> {
        let times = EntryTimes::All;
        if listed == ListedSets::Series {
            let sets = [TaskSet::Series(namespace.as_str())];
            let [range] = self.read_after(keys, sets, after, until, LISTED_MAX, times).await?;
            let damaged = range.entries - range.tasks.len();
            return Ok((range.tasks, range.end, damaged));
        }
        let sets = [TaskSet::Due, TaskSet::Paused];
        let [due, paused] = self.read_after(keys, sets, after, until, LISTED_MAX, times).await?;
        let damaged = [&due, &paused].map(|range| range.entries - range.tasks.len());
        let (tasks, end) = merge(due, paused);
        Ok((tasks, end, damaged.iter().sum()))
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
        let selects_series = filter.kind.is_some_and(KindFilter::selects_series);
        let listed = match selects_series && self.has_all_series(keys).await? {
            true => ListedSets::Series,
            false => ListedSets::All,
        };
        let (mut items, mut read) = (Vec::new(), 0);
        loop {
            let (tasks, end, damaged) =
                self.read_listed(keys, (listed, &filter.namespace), after, &until).await?;
            read += damaged;
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
            match end {
                Some(end) if read < LIST_READS_MAX => after = end,
                next => return Ok(Page { items, next }),
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
        let mut from =
            after.map_or_else(|| bound(b"[", b""), |after| bound(b"(", &codec::fire(after)));
        let to = bound(b"[", &[0xff; codec::FIRE_BYTES]);
        let limit = limit.clamp(1, LETTERS_MAX);
        let mut items = Vec::new();
        // One call is enough unless letters are damaged.
        loop {
            let range = self.read_dead_range(keys, &from, &to, limit - items.len()).await?;
            let damaged = range.entries - range.letters.len();
            items.extend(range.letters);
            if !range.more || damaged == 0 || items.len() >= limit {
                let next = items.last().filter(|_| range.more).map(DeadLetter::fire_id);
                return Ok(Page { items, next });
            }
            from = [b"(", range.last.unwrap_or_default().as_slice()].concat();
        }
    }

    /// Reads the next dead letters between two bounds, as `ZRANGEBYLEX` expects them.
    pub(crate) async fn read_dead_range(
        &self,
        keys: &PartitionKeys,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<LetterRange, StoreError> {
        let call = ScriptCall::new(&script::DEAD, [keys.dead.as_str(), &keys.letters])
            .arg(from)
            .arg(to)
            .number(limit as u64)
            .number(PAGE_BYTES_MAX as u64);
        let [more, members, values] = reply::tuple(self.reads.call(&call).await?)?;
        let more = reply::integer(&more)? != 0;
        let (mut letters, mut last, mut entries) = (Vec::new(), None, 0);
        let values = reply::optional_bytes_list(values)?;
        for (member, letter) in reply::array(members)?.into_iter().zip(values) {
            let member = reply::bytes(member)?;
            entries += 1;
            // What is damaged is logged and counted.
            letters.extend(self.read_letter_of(keys, &member, letter).ok());
            last = Some(member);
        }
        Ok(LetterRange { letters, entries, last, more })
    }

    /// Reads the dead letter of a member, which is the namespace and the fire.
    fn read_letter_of(
        &self,
        keys: &PartitionKeys,
        member: &[u8],
        letter: Option<Vec<u8>>,
    ) -> Result<DeadLetter, StoreError> {
        let damaged = |why: &dyn Display| {
            self.damage.found("the entry of a dead letter", &keys.dead, member, why)
        };
        let fire = member.iter().position(|byte| *byte == 0).map(|at| &member[at + 1..]);
        let fire_id =
            codec::read_fire(fire.unwrap_or_default()).map_err(|error| damaged(&error))?;
        let letter = letter.ok_or_else(|| damaged(&"the dead letter has no value"))?;
        self.decode_letter(keys, fire_id, &letter)
    }

    pub(crate) async fn read_letters(
        &self,
        keys: &PartitionKeys,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let mut letters = Vec::with_capacity(fire_ids.len());
        for fire_ids in fire_ids.chunks(IDS_MAX) {
            let mut command = redis::cmd("HMGET");
            command.arg(&keys.letters);
            for fire_id in fire_ids {
                command.arg(&codec::fire(*fire_id)[..]);
            }
            let values = self.reads.command(command, &keys.letters).await?;
            let values = reply::optional_bytes_list(values)?;
            if values.len() != fire_ids.len() {
                return Err(reply::unexpected("as many dead letters as fires"));
            }
            for (fire_id, value) in fire_ids.iter().zip(values) {
                let letter = value.map(|value| self.decode_letter(keys, *fire_id, &value));
                letters.push(letter.transpose()?);
            }
        }
        Ok(letters)
    }

    fn decode_letter(
        &self,
        keys: &PartitionKeys,
        fire_id: FireId,
        bytes: &[u8],
    ) -> Result<DeadLetter, StoreError> {
        let letter = punctual_store::codec::read_letter(bytes, &self.interner);
        letter.and_then(|letter| same_fire(letter, DeadLetter::fire_id, fire_id)).map_err(|error| {
            self.damage.found("the dead letter", &keys.letters, &codec::fire(fire_id), error)
        })
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
        let (mut records, mut bytes_left) = (Vec::new(), HISTORY_BYTES_MAX);
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
            .number(wanted as u64)
            .number(bytes_left.min(RECORDS_BYTES_MAX) as u64);
            let [first, of_task, fires, others, more] =
                reply::tuple(self.reads.call(&call).await?)?;
            let fires = reply::array(fires)?;
            let (mut last, mut is_full) = (None, false);
            for (fire, record) in fires.into_iter().zip(reply::optional_bytes_list(others)?) {
                let fire = reply::bytes(fire)?;
                if let Some(record) = record {
                    is_full |= record.len() > bytes_left && !records.is_empty();
                    if is_full {
                        break;
                    }
                    bytes_left = bytes_left.saturating_sub(record.len());
                    records.push(self.decode_record(&keys.history, &fire, &record)?);
                }
                last = Some(fire);
            }
            let has_more = reply::integer(&more)? != 0 && records.len() < limit;
            let is_cut = is_full || (has_more && bytes_left == 0);
            match last {
                Some(last) if has_more && !is_cut => newest = [b"(", last.as_slice()].concat(),
                _ => {
                    let (key, field) = match reply::integer(&of_task)? {
                        0 => (&keys.history, &plain[..]),
                        _ => (&keys.tasks, &plain[..codec::ID_BYTES]),
                    };
                    let first = reply::optional_bytes(first)?;
                    let read = first.map(|first| self.decode_record(key, field, &first));
                    let oldest = records.last().map(|record| record.fire_id).filter(|_| is_cut);
                    let read = read.transpose()?;
                    records.extend(read.filter(|first| oldest.is_none_or(|it| first.fire_id > it)));
                    break;
                }
            }
        }
        records.sort_by_key(|record: &FireRecord| std::cmp::Reverse(record.fire_id));
        records.truncate(limit);
        Ok(records)
    }

    /// Reads the record of a fire, which is the field or begins with it.
    fn decode_record(
        &self,
        key: &str,
        field: &[u8],
        bytes: &[u8],
    ) -> Result<FireRecord, StoreError> {
        let record = codec::read_record(bytes, &self.interner).and_then(|record| {
            let is_its_own = codec::fire(record.fire_id).starts_with(field);
            is_its_own.then_some(record).ok_or(CodecError::Invalid("fire of the record"))
        });
        record.map_err(|error| self.damage.found("the record of a fire", key, field, error))
    }
}

/// An entry of a sorted set, and what the hashes have about its task.
struct TaskEntry<'a> {
    set: TaskSet<'a>,
    member: Vec<u8>,
    /// The time of the entry, if it was read.
    score: Option<f64>,
    value: Option<Vec<u8>>,
    postponement: Option<Vec<u8>>,
}

/// Returns a value if it is of the fire under which it is stored.
fn same_fire<T>(value: T, fire_of: fn(&T) -> FireId, fire_id: FireId) -> Decoded<T> {
    let is_its_own = fire_of(&value) == fire_id;
    is_its_own.then_some(value).ok_or(CodecError::Invalid("fire"))
}

/// Merges two ranges of tasks, in order. If one of them has more entries, the merged range is
/// complete only up to its end, which is returned; later tasks are left out.
fn merge(due: TaskRange, paused: TaskRange) -> (Vec<Task>, Option<Position>) {
    let complete_until = [due.end, paused.end].into_iter().flatten().min();
    let mut tasks = [due.tasks, paused.tasks].concat();
    tasks.sort_by_key(Position::of);
    if let Some(complete_until) = complete_until {
        tasks.retain(|task| Position::of(task) <= complete_until);
    }
    (tasks, complete_until)
}
