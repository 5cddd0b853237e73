//! Ended fires: pages newest first, and the last fire of a key.
//!
//! A page is found in the groups of `ends`, merged over the kinds of ends. If a prefix of keys has
//! few fires, they are found in `keyed` instead. Both have the time at which a fire ended; its
//! record decides whether that is still so, because a fire that ended again is shown at its newest
//! end only. A fire that ends again while a page is read may be missing from that page.

use punctual_core::{EndKind, FireId, FireRecord, Namespace, TaskId, TaskKey, Timestamp};
use punctual_store::{FireFilter, FirePosition, Page, StoreError};
use redis::Value;

use super::PAGE_BYTES_MAX;
use super::candidates::FireCandidates;
use crate::format::codec;
use crate::format::ends::{self, SPREAD_MAX};
use crate::format::keys::PartitionKeys;
use crate::store::RedisStore;
use crate::transport::reply;
use crate::transport::script::{self, ScriptCall};

/// The number of records that the first call of a page reads, and the largest number of any call.
const RECORDS_FIRST: usize = 32;
const RECORDS_MAX: usize = 128;
/// The largest number of records that one page reads: a label that few fires have ends a page
/// early.
const RECORD_READS_MAX: usize = 4096;
/// The largest number of fires that one page reads from groups: a prefix of keys that few of them
/// have ends a page early. Some milliseconds of Redis.
const WALKED_MAX: usize = 50_000;
/// The number of groups that the first call of a page reads, by how much it grows with each call,
/// and its largest value.
const GROUPS_FIRST: usize = 4;
const GROUPS_GROWTH: usize = 4;
const GROUPS_MAX: usize = 64;
/// The size in bytes of a reply. The size of the one before decides how much a call asks for.
const REPLY_BYTES: usize = 1 << 20;
/// The largest number of fires of a prefix of keys that are read from `keyed` for one page: about a
/// millisecond of Redis.
const NARROW_MAX: usize = 4000;
/// The largest number of keys in one call for their last fires: their records may be large.
const LAST_KEYS_MAX: usize = 64;
/// The largest number of members that such a call looks at for each key.
const LAST_LOOKS_MAX: usize = 256;

/// The record of a fire as Redis has it.
struct StoredRecord {
    value: Option<Vec<u8>>,
    /// Whether it replaced its task.
    of_task: bool,
}

/// A page while its records are read.
struct PageReader<'a> {
    store: &'a RedisStore,
    keys: &'a PartitionKeys,
    filter: &'a FireFilter,
    limit: usize,
    items: Vec<FireRecord>,
    reads: usize,
    bytes: usize,
}

impl PageReader<'_> {
    /// Reads the records of fires in order, and adds those that match. Returns where the page ends
    /// if it is full.
    async fn add(&mut self, fires: &[FirePosition]) -> Result<Option<FirePosition>, StoreError> {
        let mut rest = fires;
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(self.wanted())];
            let records = self.store.read_records(self.keys, some).await?;
            rest = &rest[some.len()..];
            for (position, record) in some.iter().zip(records) {
                self.reads += 1;
                self.bytes += record.value.as_ref().map_or(0, Vec::len);
                let record = self.store.decode_stored(self.keys, *position, record);
                // What is damaged is logged and counted.
                let record = record.ok().flatten();
                self.items.extend(record.filter(|record| self.filter.matches(record)));
                if self.is_full() {
                    return Ok(Some(*position));
                }
            }
        }
        Ok(None)
    }

    /// Returns how many records to read at once: no more than the page can show, unless some of
    /// them may not match.
    fn wanted(&self) -> usize {
        let fits = match self.reads {
            0 => RECORDS_FIRST,
            reads => fitting(self.bytes / reads).min(RECORDS_MAX),
        };
        match self.filter.label {
            None => fits.min(self.limit - self.items.len()),
            Some(_) => fits,
        }
    }

    fn is_full(&self) -> bool {
        self.items.len() >= self.limit
            || self.reads >= RECORD_READS_MAX
            || self.bytes >= PAGE_BYTES_MAX
    }

    fn end(self, next: Option<FirePosition>) -> Page<FireRecord, FirePosition> {
        Page { items: self.items, next }
    }
}

/// Returns how many values of a size a reply may have.
fn fitting(bytes: usize) -> usize {
    (REPLY_BYTES / bytes.max(1)).max(1)
}

/// The times and positions that a filter and the start of a page select.
#[derive(Debug, Clone, Copy)]
struct FireRange {
    after: Option<FirePosition>,
    from: Timestamp,
    /// No fire that ended later is selected.
    until: Timestamp,
}

impl FireRange {
    fn new(filter: &FireFilter, after: Option<FirePosition>) -> Self {
        let until = match filter.to {
            Timestamp::MAX => Timestamp::MAX,
            to => to.millis_before(1),
        };
        let until = after.map_or(until, |after| until.min(after.ended_at));
        Self { after, from: filter.from, until }
    }

    fn has(&self, position: FirePosition) -> bool {
        (self.from..=self.until).contains(&position.ended_at)
            && self.after.is_none_or(|after| position < after)
    }
}

/// The groups of one end that were not read yet.
struct EndCursor {
    /// The first and the last of them, as ZREVRANGEBYLEX expects them.
    first: Vec<u8>,
    last: Vec<u8>,
    /// The latest time that one of them can have; `None` if there are no more.
    unread: Option<Timestamp>,
    /// How many of them to read next.
    wanted: usize,
}

impl EndCursor {
    fn new(namespace: &str, end: EndKind, range: FireRange) -> Self {
        let bound = |mark: u8, at: Timestamp| {
            let mut bound = vec![mark];
            ends::put_start(&mut bound, namespace, end);
            ends::put_time(&mut bound, at);
            bound
        };
        let latest = range.until.after(SPREAD_MAX);
        let mut last = bound(b'[', latest);
        // Above all groups of this time.
        last.push(0xff);
        let (first, unread) = (bound(b'[', range.from), Some(latest));
        Self { first, last, unread, wanted: GROUPS_FIRST }
    }

    /// Continues below the groups that were read. `start` is the length of the namespace and of the
    /// zero behind it.
    fn move_below(&mut self, groups: &[Vec<u8>], start: usize) {
        let Some(group) = groups.last().filter(|_| groups.len() == self.wanted) else {
            self.unread = None;
            return;
        };
        // The time of a damaged group is not known; then the one before it is a bound, too.
        if let Ok(latest) = ends::latest_of(group, start) {
            self.unread = self.unread.min(Some(latest));
        }
        self.last = [b"(", ends::name_of(group, start)].concat();
        let bytes = groups.iter().map(Vec::len).sum::<usize>() / groups.len();
        self.wanted = (self.wanted * GROUPS_GROWTH).min(GROUPS_MAX).min(fitting(bytes));
    }
}

/// What is left of a walk.
enum Walk {
    Open,
    /// The page ends, and the next one starts here, if there is one.
    Over(Option<FirePosition>),
}

/// A walk through the groups of a namespace, newest first.
struct EndsWalk<'a> {
    filter: &'a FireFilter,
    range: FireRange,
    cursors: Vec<EndCursor>,
    candidates: FireCandidates,
    walked: usize,
}

impl<'a> EndsWalk<'a> {
    fn new(filter: &'a FireFilter, range: FireRange) -> Self {
        let ends = filter.end.map_or(EndKind::ALL.to_vec(), |end| vec![end]);
        let cursor = |end| EndCursor::new(filter.namespace.as_str(), end, range);
        let cursors = ends.into_iter().map(cursor).collect();
        Self { filter, range, cursors, candidates: FireCandidates::default(), walked: 0 }
    }

    /// Returns the length of the namespace and of the zero behind it.
    fn start(&self) -> usize {
        self.filter.namespace.as_str().len() + 1
    }

    /// Returns the latest time that an unread group can have.
    fn unread(&self) -> Option<Timestamp> {
        self.cursors.iter().filter_map(|cursor| cursor.unread).max()
    }

    /// Returns the cursors whose unread groups may have the newest fires.
    fn newest(&mut self) -> Vec<&mut EndCursor> {
        let unread = self.unread();
        self.cursors.iter_mut().filter(|cursor| cursor.unread == unread).collect()
    }

    /// Whether a fire of a group is in range and may match.
    fn selects(&self, entry: &ends::GroupEntry<'_>) -> bool {
        entry.key.starts_with(self.filter.key_prefix.as_bytes()) && self.range.has(entry.position)
    }

    fn take_ready(&mut self) -> Vec<FirePosition> {
        let unread = self.unread();
        self.candidates.take_ready(unread)
    }

    /// Returns whether the page ends after all that is ready was shown.
    fn state(&self) -> Walk {
        if let Some(cut_at) = self.candidates.cut_at() {
            return Walk::Over(Some(cut_at));
        }
        let Some(unread) = self.unread() else { return Walk::Over(None) };
        let next = above(unread);
        let is_progress = next.ended_at > unread && self.range.after.is_none_or(|it| next < it);
        match self.walked >= WALKED_MAX && is_progress {
            true => Walk::Over(Some(next)),
            false => Walk::Open,
        }
    }
}

/// Returns the position above all fires that ended at a time or earlier.
fn above(at: Timestamp) -> FirePosition {
    let fire_id = FireId { task: TaskId::floor(Timestamp::EPOCH), nominal_at: Timestamp::EPOCH };
    FirePosition { ended_at: at.after(std::time::Duration::from_millis(1)), fire_id }
}

impl RedisStore {
    pub(crate) async fn read_fires(
        &self,
        keys: &PartitionKeys,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StoreError> {
        let range = FireRange::new(filter, after);
        let (items, limit) = (Vec::new(), limit.max(1));
        let mut page = PageReader { store: self, keys, filter, limit, items, reads: 0, bytes: 0 };
        if let Some(fires) = self.read_narrow(keys, filter, range).await? {
            let next = page.add(&fires).await?;
            return Ok(page.end(next));
        }
        let mut walk = EndsWalk::new(filter, range);
        loop {
            self.read_groups(keys, &mut walk).await?;
            if let Some(next) = page.add(&walk.take_ready()).await? {
                return Ok(page.end(Some(next)));
            }
            if let Walk::Over(next) = walk.state() {
                return Ok(page.end(next));
            }
        }
    }

    /// Reads the next groups of a walk. A group that is damaged is left out.
    async fn read_groups(
        &self,
        keys: &PartitionKeys,
        walk: &mut EndsWalk<'_>,
    ) -> Result<(), StoreError> {
        let start = walk.start();
        let mut groups = Vec::new();
        for cursor in walk.newest() {
            let mut read = redis::cmd("ZREVRANGEBYLEX");
            read.arg(&keys.ends).arg(&cursor.last).arg(&cursor.first);
            read.arg("LIMIT").arg(0).arg(cursor.wanted);
            let members = reply::array(self.reads.command(read, &keys.ends).await?)?;
            let members: Vec<_> =
                members.into_iter().map(reply::bytes).collect::<Result<_, _>>()?;
            cursor.move_below(&members, start);
            groups.extend(members);
        }
        let mut found = Vec::new();
        walk.walked += groups.len();
        for group in &groups {
            // What is damaged is logged and counted.
            let Ok(entries) = self.decode_group(keys, group, start) else { continue };
            walk.walked += entries.len();
            let selected = entries.iter().filter(|entry| walk.selects(entry));
            found.extend(selected.map(|entry| entry.position));
        }
        walk.candidates.add(found.into_iter());
        Ok(())
    }

    fn decode_group<'a>(
        &self,
        keys: &PartitionKeys,
        member: &'a [u8],
        start: usize,
    ) -> Result<Vec<ends::GroupEntry<'a>>, StoreError> {
        ends::read_group(member, start).map_err(|error| {
            let name = ends::name_of(member, start);
            self.damage.found("a group of ended fires", &keys.ends, name, error)
        })
    }

    /// Reads the fires of a prefix of keys in order, if they are few.
    async fn read_narrow(
        &self,
        keys: &PartitionKeys,
        filter: &FireFilter,
        range: FireRange,
    ) -> Result<Option<Vec<FirePosition>>, StoreError> {
        if filter.key_prefix.is_empty() {
            return Ok(None);
        }
        let bound = |mark: u8, end: &[u8]| {
            let mut bound = vec![mark];
            codec::put_name(&mut bound, filter.namespace.as_str(), &filter.key_prefix);
            bound.extend_from_slice(end);
            bound
        };
        // No text has the byte 0xff.
        let (first, last) = (bound(b'[', b""), bound(b'(', &[0xff]));
        let mut count = redis::cmd("ZLEXCOUNT");
        count.arg(&keys.keyed).arg(&first).arg(&last);
        let count = reply::integer(&self.reads.command(count, &keys.keyed).await?)?;
        if usize::try_from(count).is_ok_and(|count| count > NARROW_MAX) {
            return Ok(None);
        }
        let mut read = redis::cmd("ZRANGEBYLEX");
        read.arg(&keys.keyed).arg(&first).arg(&last).arg("LIMIT").arg(0).arg(NARROW_MAX + 1);
        let members = reply::array(self.reads.command(read, &keys.keyed).await?)?;
        if members.len() > NARROW_MAX {
            return Ok(None);
        }
        let mut fires = Vec::new();
        for member in members {
            // What is damaged is logged and counted.
            let Ok(fire) = self.decode_keyed(keys, &reply::bytes(member)?) else { continue };
            let is_end = filter.end.is_none_or(|end| ends::letter(end) == fire.letter);
            if is_end && range.has(fire.position) {
                fires.push(fire.position);
            }
        }
        fires.sort_unstable_by(|a, b| b.cmp(a));
        fires.dedup();
        Ok(Some(fires))
    }

    fn decode_keyed(
        &self,
        keys: &PartitionKeys,
        member: &[u8],
    ) -> Result<ends::KeyedFire, StoreError> {
        ends::read_keyed(member).map_err(|error| {
            self.damage.found("the entry of a fire of a key", &keys.keyed, member, error)
        })
    }

    /// Reads the records of fires, with one command for many: it costs Redis a fifth of a script.
    async fn read_records(
        &self,
        keys: &PartitionKeys,
        fires: &[FirePosition],
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let fires: Vec<FireId> = fires.iter().map(|fire| fire.fire_id).collect();
        // A record under `history` is newer than one that replaced the task.
        let mut records = self.read_apart(keys, &fires).await?;
        let is_left = |(index, fire): &(usize, &FireId)| {
            records[*index].value.is_none() && codec::is_plain(**fire)
        };
        let left: Vec<usize> =
            fires.iter().enumerate().filter(is_left).map(|(index, _)| index).collect();
        let ids: Vec<_> = left.iter().map(|index| codec::id(fires[*index].task).to_vec()).collect();
        let mut living = Vec::new();
        for (index, value) in left.into_iter().zip(self.read_fields(&keys.tasks, &ids).await?) {
            match value {
                Some(mut value) if codec::is_ended(&value) => {
                    value.remove(0);
                    records[index] = StoredRecord { value: Some(value), of_task: true };
                }
                Some(_) => living.push(index),
                None => {}
            }
        }
        // A task that was redriven in between: its record has moved to the history.
        let redriven: Vec<FireId> = living.iter().map(|index| fires[*index]).collect();
        for (index, record) in living.into_iter().zip(self.read_apart(keys, &redriven).await?) {
            records[index] = record;
        }
        Ok(records)
    }

    async fn read_apart(
        &self,
        keys: &PartitionKeys,
        fires: &[FireId],
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let fields: Vec<_> = fires.iter().map(|fire| codec::fire(*fire).to_vec()).collect();
        let values = self.read_fields(&keys.history, &fields).await?;
        Ok(values.into_iter().map(|value| StoredRecord { value, of_task: false }).collect())
    }

    /// Returns the values of fields of a hash, in their order.
    pub(super) async fn read_fields(
        &self,
        key: &str,
        fields: &[Vec<u8>],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        if fields.is_empty() {
            return Ok(Vec::new());
        }
        let mut read = redis::cmd("HMGET");
        read.arg(key);
        for field in fields {
            read.arg(field);
        }
        let values = reply::optional_bytes_list(self.reads.command(read, key).await?)?;
        if values.len() != fields.len() {
            return Err(reply::unexpected("as many values as fields"));
        }
        Ok(values)
    }

    /// Decodes the record of a fire. Returns `None` if the fire ended again since, or is gone.
    fn decode_stored(
        &self,
        keys: &PartitionKeys,
        position: FirePosition,
        record: StoredRecord,
    ) -> Result<Option<FireRecord>, StoreError> {
        let Some(value) = record.value else { return Ok(None) };
        let fire = codec::fire(position.fire_id);
        let (key, field) = match record.of_task {
            true => (&keys.tasks, &fire[..codec::ID_BYTES]),
            false => (&keys.history, &fire[..]),
        };
        let record = self.decode_record(key, field, &value)?;
        Ok(Some(record).filter(|record| FirePosition::of(record) == position))
    }

    pub(crate) async fn read_last_fires(
        &self,
        keys: &PartitionKeys,
        namespace: &Namespace,
        names: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        let mut records = Vec::with_capacity(names.len());
        for names in names.chunks(LAST_KEYS_MAX) {
            let searches = names.iter().map(|name| LastSearch::new(namespace, name)).collect();
            records.extend(self.read_last(keys, searches).await?);
        }
        Ok(records)
    }

    async fn read_last(
        &self,
        keys: &PartitionKeys,
        mut searches: Vec<LastSearch>,
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        // One call is enough unless very many fires ended again.
        loop {
            let mut open: Vec<_> = searches.iter_mut().filter(|it| it.found.is_none()).collect();
            if open.is_empty() {
                return Ok(searches.into_iter().filter_map(|search| search.found).collect());
            }
            let all = [keys.tasks.as_str(), &keys.history, &keys.keyed];
            let mut call = ScriptCall::new(&script::LAST, all).number(LAST_LOOKS_MAX as u64);
            for search in &open {
                call = call.arg(&search.last).arg(&search.first);
            }
            let answers = reply::array(self.reads.call(&call).await?)?;
            if answers.len() != open.len() {
                return Err(reply::unexpected("as many fires as keys"));
            }
            for (search, answer) in open.iter_mut().zip(answers) {
                let mut answer = reply::array(answer)?.into_iter();
                match (answer.next(), answer.next(), answer.next()) {
                    (None, ..) => search.found = Some(None),
                    (Some(member), Some(value), Some(of_task)) => {
                        let member = reply::bytes(member)?;
                        let record = stored(reply::optional_bytes(value)?, &of_task)?;
                        let position = self.decode_keyed(keys, &member)?.position;
                        search.found = Some(self.decode_stored(keys, position, record)?);
                    }
                    (Some(member), ..) => {
                        search.last = [b"(", reply::bytes(member)?.as_slice()].concat();
                    }
                }
            }
        }
    }
}

/// The search for the last fire of a key.
struct LastSearch {
    /// The first and the last of the members that were not looked at, as ZREVRANGEBYLEX expects
    /// them.
    first: Vec<u8>,
    last: Vec<u8>,
    /// The result, once it is known.
    found: Option<Option<FireRecord>>,
}

impl LastSearch {
    fn new(namespace: &Namespace, key: &TaskKey) -> Self {
        let bound = |mark: u8, end: u8| {
            let mut bound = vec![mark];
            codec::put_name(&mut bound, namespace.as_str(), key.as_str());
            bound.push(end);
            bound
        };
        // Behind a key there is a zero.
        Self { first: bound(b'[', 0), last: bound(b'(', 1), found: None }
    }
}

fn stored(value: Option<Vec<u8>>, of_task: &Value) -> Result<StoredRecord, StoreError> {
    Ok(StoredRecord { value, of_task: reply::integer(of_task)? != 0 })
}
