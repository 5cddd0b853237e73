//! Long polls of a broker that is one of many: whoever polls here gets what owners anywhere have.
//!
//! In: what a worker wants of a queue. Out: deliveries, each with the broker that leased it, which is asked here first and elsewhere at the same
//! time; the first that has some answers. What comes from others afterwards goes back to them as never seen.
//! Bound: one poll at each other broker for each poll here, for no longer than [`ROUND`] beyond it.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{BrokerId, Namespace, Queue};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Heard, Place, Token, Word};
use crate::broker::{Broker, Shared};
use crate::peer::{PeerError, Peers, Polled};

/// How long a poll waits at another broker before it is looked whether anybody still wants it.
const ROUND: Duration = Duration::from_secs(1);

/// A delivery, and who has leased it: another broker, if not this one.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) polled: Polled,
    pub(crate) at: Option<BrokerId>,
}

/// What a worker wants.
#[derive(Debug, Clone)]
pub(crate) struct Want {
    pub(crate) namespace: Namespace,
    pub(crate) queue: Queue,
    pub(crate) max: usize,
    pub(crate) wait: Duration,
    pub(crate) lease: Option<Duration>,
}

/// Waits for deliveries, wherever they are.
pub(crate) async fn poll(broker: &Broker, want: Want) -> Vec<Found> {
    let Some(shared) = &broker.shared else {
        return poll_here(broker, &want).await;
    };
    let mut elsewhere = Elsewhere::start(shared, &want);
    let found = tokio::select! {
        // What is here already is found without a look elsewhere.
        biased;
        found = poll_here(broker, &want) => found,
        Ok(Some(found)) = timeout(want.wait, elsewhere.found.recv()) => found,
    };
    if found.is_empty() {
        // The wait was over here; an answer may have come from elsewhere in the same moment.
        return elsewhere.found.try_recv().unwrap_or_default();
    }
    found
}

async fn poll_here(broker: &Broker, want: &Want) -> Vec<Found> {
    let line = (want.namespace.clone(), want.queue.clone());
    let leased = broker.hub.poll(line, want.max, want.wait, want.lease).await;
    leased.iter().map(|leased| Found { polled: leased.into(), at: None }).collect()
}

/// Polls at other brokers, until dropped.
struct Elsewhere {
    found: mpsc::Receiver<Vec<Found>>,
    peers: Arc<Peers>,
    namespace: Namespace,
}

impl Elsewhere {
    fn start(shared: &Shared, want: &Want) -> Self {
        let (sender, found) = mpsc::channel(1);
        for at in shared.membership.others() {
            let (peers, want, sender) = (Arc::clone(&shared.peers), want.clone(), sender.clone());
            tokio::spawn(poll_at(at, peers, want, sender));
        }
        let (peers, namespace) = (Arc::clone(&shared.peers), want.namespace.clone());
        Self { found, peers, namespace }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.found.close();
        // Nobody has seen these.
        while let Ok(unseen) = self.found.try_recv() {
            give_back(&self.peers, &self.namespace, unseen);
        }
    }
}

async fn poll_at(at: BrokerId, peers: Arc<Peers>, want: Want, found: mpsc::Sender<Vec<Found>>) {
    let mut left = want.wait;
    while !left.is_zero() && !found.is_closed() {
        let Want { namespace, queue, max, lease, .. } = &want;
        let round = left.min(ROUND);
        left -= round;
        let polled = peers.poll(&at, namespace, queue, *max, round, *lease).await;
        let Ok(polled) = polled else {
            // One that cannot be reached has nothing for us in this poll.
            return;
        };
        if !polled.is_empty() {
            let all = polled.into_iter().map(|polled| Found { polled, at: Some(at.clone()) });
            if let Err(unwanted) = found.send(all.collect()).await {
                give_back(&peers, namespace, unwanted.0);
            }
            return;
        }
    }
}

/// Gives back what nobody has seen. If that fails, its lease ends by itself.
fn give_back(peers: &Arc<Peers>, namespace: &Namespace, unseen: Vec<Found>) {
    let Some(at) = unseen.first().and_then(|found| found.at.clone()) else { return };
    let words: Vec<_> = unseen.iter().map(|found| (found.polled.token, Word::Unseen)).collect();
    let (peers, namespace) = (Arc::clone(peers), namespace.clone());
    tokio::spawn(async move {
        if let Err(error) = peers.settle(&at, Place::anywhere_in(&namespace), &words).await {
            tracing::warn!(%at, %error, "deliveries that nobody saw could not be given back");
        }
    });
}

/// A token as workers are given it: with the broker that leased, because a word may come to any of them.
pub(crate) fn token_of(broker: &Broker, found: &Found) -> String {
    let token = found.polled.token;
    match (&broker.shared, &found.at) {
        (None, _) => token.to_string(),
        (Some(shared), None) => format!("{token}@{}", shared.membership.me),
        (Some(_), Some(at)) => format!("{token}@{at}"),
    }
}

/// What one broker is told, and the places of its answers.
struct Told {
    at: Option<BrokerId>,
    places: Vec<usize>,
    words: Vec<(Token, Word)>,
}

/// Says what a worker says to whoever has leased. One answer each, in order.
pub(crate) async fn settle(
    broker: &Broker,
    place: Place<'_>,
    words: Vec<(String, Word)>,
) -> Result<Vec<Heard>, PeerError> {
    let mut heard = vec![Heard::Stale; words.len()];
    let mut by_broker: Vec<Told> = Vec::new();
    for (index, (text, word)) in words.into_iter().enumerate() {
        // What we cannot have given is as stale as what is over.
        let Some((token, at)) = read_token(broker, &text) else { continue };
        match by_broker.iter_mut().find(|told| told.at == at) {
            Some(told) => {
                told.places.push(index);
                told.words.push((token, word));
            }
            None => by_broker.push(Told { at, places: vec![index], words: vec![(token, word)] }),
        }
    }
    for Told { at, places, words } in by_broker {
        let told = match (&at, &broker.shared) {
            (Some(at), Some(shared)) => match shared.peers.settle(at, place, &words).await {
                // A broker that is gone has left no leases; nothing is changed by what is said of them.
                Err(PeerError::Unreachable(_)) if !shared.membership.others().contains(at) => {
                    continue;
                }
                told => told?,
            },
            _ => broker.hub.settle(place, words),
        };
        places.into_iter().zip(told).for_each(|(place, told)| heard[place] = told);
    }
    Ok(heard)
}

/// A token, and who has leased under it if not this broker. `None` if it is none of this cluster.
fn read_token(broker: &Broker, text: &str) -> Option<(Token, Option<BrokerId>)> {
    let (token, at) = match text.split_once('@') {
        Some((token, at)) => (token, Some(at)),
        None => (text, None),
    };
    let read = token.parse::<Token>().ok().filter(|read| read.to_string() == token)?;
    let Some(at) = at else {
        return broker.shared.is_none().then_some((read, None));
    };
    let shared = broker.shared.as_ref()?;
    if at == shared.membership.me.as_str() {
        return Some((read, None));
    }
    // Only who is of this cluster is called.
    Some((read, Some(shared.membership.known(at)?)))
}
