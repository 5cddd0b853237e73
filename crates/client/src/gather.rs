//! Sends concurrent calls about one task each together: cancel by key, cancel by id, touch.
//!
//! All calls that are queued when the task of this file runs become one request per namespace and
//! verb, and each caller gets its own answer. A call never waits for the answer of another, so the
//! timeout of a call begins when it is made. Callers that got their answers together often call
//! again together, so many callers need few requests. `unary` sends the requests.

use std::collections::HashMap;
use std::sync::Arc;

use punctual_proto::v1;
use tokio::sync::{mpsc, oneshot};

use crate::answer::{CancelResult, Touched};
use crate::client::unary::UnaryCalls;
use crate::{Error, Problem};

/// Names in one request: enough that the cost of the request itself does not matter. A broker
/// accepts 10,000.
const NAMES_MAX: usize = 1_000;
/// Queued calls before a caller must wait. The queue is empty after each turn of the task.
const CALLS_MAX: usize = 4 * NAMES_MAX;

type CancelReply = oneshot::Sender<Result<CancelResult, Error>>;
type TouchReply = oneshot::Sender<Result<(), Error>>;

/// Whether a task to cancel is named by its key or by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelBy {
    Key,
    Id,
}

/// A call about one task.
#[derive(Debug)]
pub(crate) struct NamedCall {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: String,
    pub(crate) verb: NamedVerb,
}

/// What to do with the task, and where the answer goes.
#[derive(Debug)]
pub(crate) enum NamedVerb {
    Cancel(CancelBy, CancelReply),
    Touch(TouchReply),
}

/// Starts the task that sends the calls. It ends when all senders are dropped.
pub(crate) fn spawn(unary: UnaryCalls) -> mpsc::Sender<NamedCall> {
    let (sender, mut calls) = mpsc::channel(CALLS_MAX);
    tokio::spawn(async move {
        let mut queued = Vec::new();
        while calls.recv_many(&mut queued, CALLS_MAX).await > 0 {
            // Callers that are about to run add their calls to the same request.
            tokio::task::yield_now().await;
            while queued.len() < CALLS_MAX
                && let Ok(call) = calls.try_recv()
            {
                queued.push(call);
            }
            for request in group(queued.drain(..)) {
                tokio::spawn(request.send(unary.clone()));
            }
        }
    });
    sender
}

/// Calls that are sent as one request.
#[derive(Debug)]
struct GatheredCalls {
    namespace: Arc<str>,
    names: Vec<String>,
    replies: NamedReplies,
}

/// Where the answers go, one for each name.
#[derive(Debug)]
enum NamedReplies {
    Cancel(CancelBy, Vec<CancelReply>),
    Touch(Vec<TouchReply>),
}

/// Groups calls by namespace and verb. The calls of a group keep their order.
fn group(calls: impl Iterator<Item = NamedCall>) -> Vec<GatheredCalls> {
    let mut groups: Vec<GatheredCalls> = Vec::new();
    for NamedCall { namespace, name, verb } in calls {
        let same = groups.iter_mut().rfind(|group| {
            let same_verb = match (&group.replies, &verb) {
                (NamedReplies::Cancel(left, _), NamedVerb::Cancel(right, _)) => left == right,
                (NamedReplies::Touch(_), NamedVerb::Touch(_)) => true,
                _ => false,
            };
            same_verb && group.namespace == namespace && group.names.len() < NAMES_MAX
        });
        match (same, verb) {
            (Some(group), verb) => group.push(name, verb),
            (None, verb) => groups.push(GatheredCalls::new(namespace, name, verb)),
        }
    }
    groups
}

impl GatheredCalls {
    fn new(namespace: Arc<str>, name: String, verb: NamedVerb) -> Self {
        let replies = match verb {
            NamedVerb::Cancel(by, reply) => NamedReplies::Cancel(by, vec![reply]),
            NamedVerb::Touch(reply) => NamedReplies::Touch(vec![reply]),
        };
        Self { namespace, names: vec![name], replies }
    }

    /// Adds a call of the same namespace and verb.
    fn push(&mut self, name: String, verb: NamedVerb) {
        match (&mut self.replies, verb) {
            (NamedReplies::Cancel(_, replies), NamedVerb::Cancel(_, reply)) => replies.push(reply),
            (NamedReplies::Touch(replies), NamedVerb::Touch(reply)) => replies.push(reply),
            _ => return,
        }
        self.names.push(name);
    }

    /// Sends the request, and each caller its answer.
    async fn send(self, unary: UnaryCalls) {
        let Self { namespace, names, replies } = self;
        match replies {
            NamedReplies::Cancel(by, replies) => {
                let results = cancel(&unary, &namespace, by, &names).await;
                answer(replies, results);
            }
            NamedReplies::Touch(replies) => {
                let results = touch(&unary, &namespace, &names).await;
                answer(replies, results);
            }
        }
    }
}

/// Sends each caller its result. Callers that are gone are ignored.
fn answer<T>(replies: Vec<oneshot::Sender<Result<T, Error>>>, results: Vec<Result<T, Error>>) {
    for (reply, result) in replies.into_iter().zip(results) {
        _ = reply.send(result);
    }
}

/// Cancels tasks. Returns one result for each.
async fn cancel(
    unary: &UnaryCalls,
    namespace: &str,
    by: CancelBy,
    names: &[String],
) -> Vec<Result<CancelResult, Error>> {
    let (keys, ids) = match by {
        CancelBy::Key => (names.to_vec(), Vec::new()),
        CancelBy::Id => (Vec::new(), names.to_vec()),
    };
    let request = v1::CancelRequest { namespace: namespace.to_owned(), keys, ids };
    match unary.cancel(request).await {
        Ok(results) => results,
        Err(error) => names.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// Touches tasks. Returns one result for each.
///
/// A broker refuses the whole request because of one key that is not valid. Then each key is
/// touched alone, so that one caller cannot make the calls of others fail.
async fn touch(unary: &UnaryCalls, namespace: &str, names: &[String]) -> Vec<Result<(), Error>> {
    let request = |keys: &[String]| v1::TouchRequest {
        namespace: namespace.to_owned(),
        keys: keys.to_vec(),
        ..v1::TouchRequest::default()
    };
    match unary.touch(request(names)).await {
        Ok(touched) => touch_results(namespace, names, touched),
        Err(Error::Problem(_)) if names.len() > 1 => {
            let mut results = Vec::with_capacity(names.len());
            for name in names.chunks(1) {
                let touched = unary.touch(request(name)).await;
                let one = touched.map(|touched| touch_results(namespace, name, touched));
                results.extend(one.unwrap_or_else(|error| vec![Err(error)]));
            }
            results
        }
        Err(error) => names.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// The result of each key of a touch.
fn touch_results(namespace: &str, keys: &[String], touched: Touched) -> Vec<Result<(), Error>> {
    let missing = touched.missing.into_iter().map(|key| {
        let detail = format!("task {key:?} not found in namespace {namespace:?}");
        let kind = "urn:punctual:task-not-found".to_owned();
        (key, Error::Problem(Problem { kind, status: 404, detail, field: None, existing: None }))
    });
    let failed: HashMap<String, Error> = missing.chain(touched.problems).collect();
    keys.iter().map(|key| failed.get(key).cloned().map_or(Ok(()), Err)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch_call(namespace: &str, name: &str) -> NamedCall {
        let verb = NamedVerb::Touch(oneshot::channel().0);
        NamedCall { namespace: Arc::from(namespace), name: name.to_owned(), verb }
    }

    fn cancel_call(namespace: &str, by: CancelBy, name: &str) -> NamedCall {
        let verb = NamedVerb::Cancel(by, oneshot::channel().0);
        NamedCall { namespace: Arc::from(namespace), name: name.to_owned(), verb }
    }

    #[test]
    fn a_request_has_the_calls_of_one_namespace_and_verb_in_their_order() {
        let calls = [
            cancel_call("a", CancelBy::Key, "1"),
            touch_call("a", "2"),
            cancel_call("b", CancelBy::Key, "3"),
            cancel_call("a", CancelBy::Id, "4"),
            cancel_call("a", CancelBy::Key, "5"),
            touch_call("a", "6"),
        ];
        let groups: Vec<_> =
            group(calls.into_iter()).into_iter().map(|group| group.names.join(" ")).collect();
        assert_eq!(groups, ["1 5", "2 6", "3", "4"]);
    }

    #[test]
    fn a_request_is_bounded() {
        let calls = (0..2 * NAMES_MAX + 1).map(|number| touch_call("a", &number.to_string()));
        let lengths: Vec<_> = group(calls).iter().map(|group| group.names.len()).collect();
        assert_eq!(lengths, [NAMES_MAX, NAMES_MAX, 1]);
    }

    #[test]
    fn each_key_of_a_touch_gets_its_own_result() {
        let keys = ["touched", "missing", "cron", "missing"].map(str::to_owned);
        let touched = Touched {
            touched: 1,
            created: 0,
            missing: vec!["missing".to_owned(), "missing".to_owned()],
            problems: vec![("cron".to_owned(), Error::Busy("later".to_owned()))],
        };
        let results = touch_results("shop", &keys, touched);
        assert!(results[0].is_ok());
        assert!(matches!(results[2], Err(Error::Busy(_))));
        for index in [1, 3] {
            let Err(Error::Problem(problem)) = &results[index] else { panic!("{results:?}") };
            assert_eq!(problem.detail, "task \"missing\" not found in namespace \"shop\"");
        }
    }
}
