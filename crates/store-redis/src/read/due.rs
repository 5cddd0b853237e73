//! Due counts: reading them, and folding the log of differences into hours.
//!
//! A reader adds hours and log, which one call of a script reads at one moment; if there are
//! several pages of hours and the log is folded meanwhile, it starts again. The owner folds the log
//! when it is long, behind the batch that made it so. Batches may be appended while it does: it
//! folds and removes what it has read.

use std::ops::ControlFlow;

use punctual_core::{Epoch, Namespace, PartitionId, Seat};
use punctual_store::codec::{DueDifferences, DueStepCounts, HourCounts, read_due_log};
use punctual_store::{DueCounts, DueHour, DueMinute, DueSteps, StoreError};

use crate::damage::UNREADABLE;
use crate::format::due;
use crate::format::keys::PartitionKeys;
use crate::store::{RedisStore, script_result};
use crate::transport::reply;
use crate::transport::script::{self, ScriptCall};

/// The size at which the log is folded: some tens of thousands of differences, which a reader adds
/// up within a millisecond.
const LOG_BYTES_MAX: i64 = 256 << 10;
/// The number of minutes at which a fold ends, so that it takes some milliseconds of Redis. The
/// differences of one batch and namespace may have more.
const FOLDED_MINUTES_MAX: usize = 10_000;
/// The number of hours in one page: at most some hundred kilobytes.
const HOURS_MAX: usize = 4096;
/// How often a read starts again because the log was folded meanwhile.
const READS_MAX: usize = 5;

/// A page of due counts.
struct DuePage {
    complete: bool,
    folds: Vec<u8>,
    log: Vec<u8>,
    members: Vec<Vec<u8>>,
}

/// Whether a page has the log. The first page of a read has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WithLog {
    Yes,
    No,
}

impl RedisStore {
    pub(crate) async fn read_due_counts(
        &self,
        keys: &PartitionKeys,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<DueCounts, StoreError> {
        for _ in 0..READS_MAX {
            if let Some(counts) = self.try_read_due_counts(keys, namespace, steps).await? {
                return Ok(counts);
            }
        }
        Err(StoreError::Unavailable("the due counts were folded during each read of them".into()))
    }

    /// Returns `None` if the log was folded between two pages.
    async fn try_read_due_counts(
        &self,
        keys: &PartitionKeys,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<Option<DueCounts>, StoreError> {
        let name = namespace.as_str();
        let mut counts = DueStepCounts::new(steps);
        let [first, last] = [steps.first(), steps.end()].map(DueMinute::hour);
        let mut from = [b"[", due::hour_prefix(name, first).as_slice()].concat();
        let to = behind(&due::hour_prefix(name, last));
        let first = self.read_due_page(keys, &from, &to, WithLog::Yes).await?;
        self.log_differences(keys, &first.log, |of, moved| {
            let ours = moved.iter().filter(|_| of == name);
            ours.for_each(|(minute, by)| counts.add(*minute, *by));
            ControlFlow::Continue(())
        })?;
        let (complete, folds) = (first.complete, first.folds);
        let mut members = first.members;
        loop {
            for member in &members {
                let hour = due::read_hour_member(name, member);
                if hour.and_then(|(hour, minutes)| counts.add_hour(hour, minutes)).is_err() {
                    self.damage.found("an hour of due counts", &keys.due_hours, member, UNREADABLE);
                }
            }
            let Some(last) = members.last().filter(|_| members.len() == HOURS_MAX) else { break };
            from = [b"(", last.as_slice()].concat();
            let page = self.read_due_page(keys, &from, &to, WithLog::No).await?;
            if page.folds != folds {
                return Ok(None);
            }
            members = page.members;
        }
        let until = (!complete).then_some(steps.first());
        Ok(Some(DueCounts { tasks: counts.into_tasks(), until }))
    }

    async fn read_due_page(
        &self,
        keys: &PartitionKeys,
        from: &[u8],
        to: &[u8],
        log: WithLog,
    ) -> Result<DuePage, StoreError> {
        let PartitionKeys { counted, due_hours, due_log, due, .. } = keys;
        let call = ScriptCall::new(&script::DUE, [counted.as_str(), due_hours, due_log, due])
            .arg(from)
            .arg(to)
            .number(HOURS_MAX as u64)
            .number(u8::from(log == WithLog::Yes));
        let [complete, folds, log, members] = reply::tuple(self.reads.call(&call).await?)?;
        let members = reply::array(members)?.into_iter().map(reply::bytes);
        Ok(DuePage {
            complete: reply::integer(&complete)? != 0,
            folds: reply::bytes(folds)?,
            log: reply::bytes(log)?,
            members: members.collect::<Result<_, _>>()?,
        })
    }

    fn log_differences<'a>(
        &self,
        keys: &PartitionKeys,
        log: &'a [u8],
        each: impl FnMut(&'a str, &[(DueMinute, i64)]) -> ControlFlow<()>,
    ) -> Result<usize, StoreError> {
        let read = read_due_log(log, each);
        read.map_err(|error| self.damage.found("the log of due counts", &keys.due_log, b"", error))
    }

    /// Folds the log if it is long. A fold that fails is tried again behind a later batch; the
    /// batch is durable in any case.
    pub(crate) async fn fold_if_long(&self, partition: PartitionId, epoch: Epoch, log_bytes: i64) {
        if log_bytes < LOG_BYTES_MAX {
            return;
        }
        if let Err(error) = self.fold(partition, epoch).await {
            tracing::warn!(%partition, %error, "log of due counts not folded");
        }
    }

    async fn fold(&self, partition: PartitionId, epoch: Epoch) -> Result<(), StoreError> {
        let keys = self.keys(partition)?;
        // No member is between these: only the log is read.
        let page = self.read_due_page(keys, b"(", b"(", WithLog::Yes).await?;
        let mut differences = DueDifferences::default();
        let bytes = self.log_differences(keys, &page.log, |name, moved| {
            if let Ok(namespace) = self.interner.namespace(name) {
                for (minute, by) in moved {
                    differences.add_to(&namespace, *minute, *by);
                }
            }
            match differences.minutes() < FOLDED_MINUTES_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        let hours = differences.by_hour();
        let (mut replaced, mut written) = (Vec::new(), Vec::new());
        let mut found = self.read_hours(keys, hours.keys().copied()).await?.into_iter();
        for ((namespace, hour), moved) in hours {
            let member = found.next().flatten();
            let counts = member.as_deref().map(|member| {
                let (_, counts) = due::read_hour_member(namespace.as_str(), member)?;
                HourCounts::read(counts)
            });
            let mut counts = counts.transpose().unwrap_or_else(|error| {
                let member = member.as_deref().unwrap_or_default();
                self.damage.found("an hour of due counts", &keys.due_hours, member, error);
                None
            });
            let counts = counts.get_or_insert_default();
            moved.iter().for_each(|(minute, by)| counts.add(*minute, *by));
            replaced.extend(member);
            written.extend(due::hour_member(namespace.as_str(), hour, counts));
        }
        let seat = Seat::Partition(partition);
        let PartitionKeys { own, counted, due_hours, due_log, .. } = keys;
        let mut call = ScriptCall::new(&script::FOLD, [own.as_str(), counted, due_hours, due_log])
            .number(epoch.get())
            .arg(self.epochs.token(seat, epoch))
            .arg(page.folds)
            .number(bytes as u64)
            .number(replaced.len() as u64);
        for member in replaced.iter().chain(&written) {
            call = call.arg(member);
        }
        match script_result(self.writes(seat).call(&call).await?)?.0 {
            0..=2 => Ok(()),
            _ => Err(reply::unexpected("a result of fold")),
        }
    }

    /// Reads the members of hours, in their order; `None` for those that have none.
    async fn read_hours(
        &self,
        keys: &PartitionKeys,
        hours: impl Iterator<Item = (&Namespace, DueHour)>,
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut call = ScriptCall::new(&script::HOURS, [keys.due_hours.as_str()]);
        let mut count = 0;
        for (namespace, hour) in hours {
            let prefix = due::hour_prefix(namespace.as_str(), hour);
            call = call.arg([b"[", prefix.as_slice()].concat()).arg(behind(&prefix));
            count += 1;
        }
        let found = reply::optional_bytes_list(self.reads.call(&call).await?)?;
        if found.len() != count {
            return Err(reply::unexpected("as many hours as were asked for"));
        }
        Ok(found)
    }
}

/// Returns the bound behind all members that start with a prefix. No counts have so many bytes of
/// 255 at their start.
fn behind(prefix: &[u8]) -> Vec<u8> {
    [b"[", prefix, &[0xff; 16]].concat()
}
