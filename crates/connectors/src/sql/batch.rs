//! Runs a batch of calls in one transaction, and those that fail on their own.
//!
//! A call that the database refuses takes the transaction with it. It is taken out and the others
//! run again, since nothing of them was committed; it runs alone afterwards, so that its result
//! does not depend on the others. After [`RERUNS_MAX`] such calls all others run alone too. Once a
//! lease is over, nothing runs any more.

use punctual_core::{AttemptResult, Guarantee};
use punctual_sql::{SqlError, SqlKind};

use super::params::SqlValue;
use super::verdict;
use crate::sink::{DynFuture, SendResult, SessionLost, confirmed, failed, unknown};

/// How often a batch runs again without the call that failed. Each time costs as much as the batch.
const RERUNS_MAX: usize = 4;

/// One delivery of a batch.
#[derive(Debug)]
pub(super) struct StatementCall {
    /// The position in the batch.
    pub(super) at: usize,
    pub(super) values: Vec<SqlValue>,
    pub(super) fire_id: String,
    pub(super) guarantee: Guarantee,
}

/// What a call did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallDone {
    /// It changed or returned that many rows.
    Rows(u64),
    /// Its fire is recorded already: an earlier attempt was committed.
    Before,
}

/// Why a transaction was not committed.
#[derive(Debug)]
pub(super) enum BatchError {
    /// The database refused one call, and the transaction with it.
    Call(usize, SqlError),
    /// The database refused the transaction, and no call in particular.
    Whole(SqlError),
    /// The session is of no use any more, and nothing was committed.
    Lost(SqlError),
    /// The session was lost while it committed: the outcome is unknown.
    Unknown(SqlError),
    /// A lease ended before the commit, and nothing was committed.
    LeaseOver,
}

impl BatchError {
    /// Whether the session can be used again after its transaction is rolled back.
    pub(super) const fn leaves_a_transaction(&self) -> bool {
        matches!(self, Self::Call(..) | Self::Whole(_) | Self::LeaseOver)
    }
}

/// Why no more calls run.
#[derive(Debug)]
enum RunsEnd {
    Lost(SessionLost),
    LeaseOver,
}

/// Runs calls in one transaction.
pub(super) trait Transaction: Send {
    /// Runs all calls and commits.
    fn run<'a>(
        &'a mut self,
        calls: &'a [StatementCall],
    ) -> DynFuture<'a, Result<Vec<CallDone>, BatchError>>;
}

/// Runs calls; `results` has the results of deliveries that have none yet as `None`.
pub(super) async fn run_all(
    transaction: &mut dyn Transaction,
    kind: SqlKind,
    mut calls: Vec<StatementCall>,
    mut results: Vec<Option<AttemptResult>>,
    answer_bytes: usize,
) -> SendResult {
    let mut alone = Vec::new();
    let mut ended = None;
    while !calls.is_empty() && ended.is_none() {
        if calls.len() > 1 && alone.len() > RERUNS_MAX {
            alone.append(&mut calls);
            break;
        }
        match transaction.run(&calls).await {
            Ok(done) => {
                for (call, done) in calls.drain(..).zip(done) {
                    results[call.at] = Some(confirmed(&text_of(done), answer_bytes));
                }
            }
            Err(BatchError::Call(at, _)) if calls.len() > 1 && at < calls.len() => {
                alone.push(calls.remove(at));
            }
            Err(BatchError::Whole(_)) if calls.len() > 1 => alone.append(&mut calls),
            Err(error) => ended = end(kind, &mut calls, &mut results, error),
        }
    }
    alone.sort_by_key(|call| call.at);
    let mut alone = alone.into_iter();
    while ended.is_none() {
        let Some(call) = alone.next() else { break };
        let mut calls = vec![call];
        match transaction.run(&calls).await {
            Ok(done) => {
                let text = done.first().map_or_else(String::new, |done| text_of(*done));
                results[calls[0].at] = Some(confirmed(&text, answer_bytes));
            }
            Err(error) => ended = end(kind, &mut calls, &mut results, error),
        }
    }
    let Some(RunsEnd::Lost(lost)) = ended else {
        // A delivery without a result was not sent, because its lease is over.
        return SendResult { results, lost: None };
    };
    let missing = || failed("the connection was lost before the statement was run");
    let results = results.into_iter().map(|result| result.or_else(|| Some(missing())));
    SendResult { results: results.collect(), lost: Some(lost) }
}

/// Sets the results of calls that the same error ended. Returns why no more calls run, if so.
fn end(
    kind: SqlKind,
    calls: &mut Vec<StatementCall>,
    results: &mut [Option<AttemptResult>],
    error: BatchError,
) -> Option<RunsEnd> {
    for call in calls.drain(..) {
        results[call.at] = match &error {
            BatchError::Call(_, error) | BatchError::Whole(error) => {
                Some(verdict::of_error(kind, error))
            }
            BatchError::Lost(error) => Some(failed(&error.to_string())),
            BatchError::Unknown(error) => {
                let reason = format!("it is not known whether the commit succeeded: {error}");
                Some(unknown(call.guarantee, &reason))
            }
            BatchError::LeaseOver => None,
        };
    }
    match error {
        BatchError::Call(..) | BatchError::Whole(_) => None,
        BatchError::Lost(error) | BatchError::Unknown(error) => {
            Some(RunsEnd::Lost(SessionLost(error.to_string())))
        }
        BatchError::LeaseOver => Some(RunsEnd::LeaseOver),
    }
}

fn text_of(done: CallDone) -> String {
    match done {
        CallDone::Rows(1) => "1 row".to_owned(),
        CallDone::Rows(rows) => format!("{rows} rows"),
        CallDone::Before => "recorded before: the statement was not run again".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Outcome;

    use super::*;

    /// Refuses the calls whose fire id is in `bad`.
    struct Scripted {
        bad: Vec<&'static str>,
        runs: Vec<usize>,
        /// The run that does not commit, and why.
        ends: Option<(usize, LastRun)>,
    }

    #[derive(Clone, Copy)]
    enum LastRun {
        /// The session is lost while it commits.
        Unknown,
        LeaseOver,
    }

    impl Transaction for Scripted {
        fn run<'a>(
            &'a mut self,
            calls: &'a [StatementCall],
        ) -> DynFuture<'a, Result<Vec<CallDone>, BatchError>> {
            Box::pin(async move {
                self.runs.push(calls.len());
                match self.ends.filter(|(at, _)| *at == self.runs.len()) {
                    Some((_, LastRun::Unknown)) => {
                        return Err(BatchError::Unknown(SqlError::Unexpected("gone".to_owned())));
                    }
                    Some((_, LastRun::LeaseOver)) => return Err(BatchError::LeaseOver),
                    None => {}
                }
                match calls.iter().position(|call| self.bad.contains(&call.fire_id.as_str())) {
                    Some(at) => {
                        let (code, message) = ("22P02".to_owned(), "no".to_owned());
                        Err(BatchError::Call(at, SqlError::Statement { code, message }))
                    }
                    None => Ok(calls.iter().map(|_| CallDone::Rows(1)).collect()),
                }
            })
        }
    }

    async fn run(
        ids: &[&str],
        bad: &[&'static str],
        ends: Option<(usize, LastRun)>,
    ) -> (String, Vec<usize>, bool) {
        let calls = ids.iter().enumerate().map(|(at, id)| StatementCall {
            at,
            values: vec![],
            fire_id: (*id).to_owned(),
            guarantee: if id.starts_with('m') {
                Guarantee::AtMostOnce
            } else {
                Guarantee::AtLeastOnce
            },
        });
        let mut scripted = Scripted { bad: bad.to_vec(), runs: vec![], ends };
        let results = ids.iter().map(|_| None).collect();
        let sent = run_all(&mut scripted, SqlKind::Postgres, calls.collect(), results, 100).await;
        let letter = |result: &Option<AttemptResult>| match result.as_ref().map(|it| &it.outcome) {
            Some(Outcome::Acked) => 'a',
            Some(Outcome::Failed { .. }) => 'f',
            Some(Outcome::Refused { .. }) => 'r',
            Some(Outcome::Expired) => 'x',
            None => '-',
        };
        (sent.results.iter().map(letter).collect(), scripted.runs, sent.lost.is_some())
    }

    #[tokio::test]
    async fn a_call_that_fails_does_not_keep_the_others_from_being_committed() {
        let many = ["1", "2", "3", "4", "5", "6", "7", "8"];
        let (unknown, over) = (LastRun::Unknown, LastRun::LeaseOver);
        for (ids, bad, ends, results, runs, lost) in [
            (&many[..3], &[][..], None, "aaa", &[3][..], false),
            (&many[..3], &["2"], None, "ara", &[3, 2, 1], false),
            (&many[..1], &["1"], None, "r", &[1], false),
            (
                &many[..],
                &["1", "2", "3", "4", "5", "6"],
                None,
                "rrrrrraa",
                &[8, 7, 6, 5, 4, 1, 1, 1, 1, 1, 1, 1, 1],
                false,
            ),
            (&["1", "m"][..], &[], Some((1, unknown)), "fx", &[2], true),
            (&many[..3], &["1"], Some((3, unknown)), "faa", &[3, 2, 1], true),
            (&["1", "m"], &[], Some((1, over)), "--", &[2], false),
            (&many[..3], &["1", "2"], Some((3, over)), "---", &[3, 2, 1], false),
            (&many[..3], &["1", "2"], Some((4, over)), "--a", &[3, 2, 1, 1], false),
        ] {
            let expected = (results.to_owned(), runs.to_vec(), lost);
            assert_eq!(run(ids, bad, ends).await, expected, "{ids:?} {bad:?}");
        }
    }
}
