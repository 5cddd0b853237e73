//! Sums what all brokers of a cluster have measured, and what operators did through them.
//!
//! Each broker answers for what it has counted itself (`measures`, `actions`). A broker that does
//! not answer in time is left out, and the result says so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{BrokerId, Clock as _, Namespace};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::actions::ActionList;
use crate::broker::Broker;
use crate::measures::series::EndSeries;
use crate::measures::windows::{WindowSpec, WindowSum};
use crate::peer::{PeerError, Peers};

/// How long a broker may take to answer. An alarm is raised within two seconds.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// What the brokers have answered.
#[derive(Debug)]
pub(crate) struct Gathered<T> {
    pub(crate) sum: T,
    /// The other brokers that were asked.
    pub(crate) others: BTreeSet<BrokerId>,
    /// Whether all of them have answered.
    pub(crate) all_answered: bool,
}

/// Sums windows over all brokers, one sum per window.
pub(crate) async fn sum_windows(
    broker: &Arc<Broker>,
    specs: &[WindowSpec],
) -> Gathered<Vec<WindowSum>> {
    let own = broker.telemetry.windows().read(specs, broker.clock.now());
    if specs.is_empty() {
        return Gathered { sum: own, others: others(broker), all_answered: true };
    }
    let specs: Arc<[WindowSpec]> = specs.into();
    let ask = move |peers: Arc<Peers>, other| {
        let specs = Arc::clone(&specs);
        async move { peers.measure(&other, &specs).await }
    };
    let add = |sums: &mut Vec<WindowSum>, theirs: Vec<WindowSum>| {
        sums.iter_mut().zip(&theirs).for_each(|(sum, it)| sum.add(it));
    };
    gather(broker, own, ask, add).await
}

/// Adds up the series of a namespace over all brokers.
pub(crate) async fn sum_series(broker: &Arc<Broker>, namespace: &Namespace) -> Gathered<EndSeries> {
    let own = broker.telemetry.series().read(namespace, broker.clock.now());
    let namespace = namespace.clone();
    let ask = move |peers: Arc<Peers>, other| {
        let namespace = namespace.clone();
        async move { peers.series(&other, &namespace).await }
    };
    gather(broker, own, ask, EndSeries::add).await
}

/// Adds up what operators did in a namespace over all brokers.
pub(crate) async fn sum_actions(
    broker: &Arc<Broker>,
    namespace: &Namespace,
) -> Gathered<ActionList> {
    let own = broker.actions.list(namespace);
    let namespace = namespace.clone();
    let ask = move |peers: Arc<Peers>, other| {
        let namespace = namespace.clone();
        async move { peers.actions(&other, &namespace).await }
    };
    gather(broker, own, ask, ActionList::add).await
}

/// Asks all other brokers at the same time, and adds their answers to what this one has.
async fn gather<T, A, F>(
    broker: &Arc<Broker>,
    own: T,
    ask: impl Fn(Arc<Peers>, BrokerId) -> F,
    add: impl Fn(&mut T, A),
) -> Gathered<T>
where
    A: Send + 'static,
    F: Future<Output = Result<A, PeerError>> + Send + 'static,
{
    let (mut sum, mut all_answered, others) = (own, true, others(broker));
    let mut calls = JoinSet::new();
    for other in &others {
        if let Some(cluster) = &broker.cluster {
            calls.spawn(timeout(ANSWER_MAX, ask(Arc::clone(&cluster.peers), other.clone())));
        }
    }
    while let Some(answer) = calls.join_next().await {
        match answer {
            Ok(Ok(Ok(theirs))) => add(&mut sum, theirs),
            _ => all_answered = false,
        }
    }
    Gathered { sum, others, all_answered }
}

fn others(broker: &Broker) -> BTreeSet<BrokerId> {
    broker.cluster.iter().flat_map(|cluster| cluster.membership.others()).collect()
}
