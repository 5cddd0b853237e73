//! Two ends over a real socket, one of which is killed, silent, full of strangers or of another opinion.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use punctual_core::{
    AttemptNo, BrokerId, Due, Epoch, FireId, Namespace, NewTask, Occasion, Outcome, PartitionId,
    Payload, Queue, Schedule, Target, Task, TaskId, TaskKey, Timestamp, Version,
};
use punctual_engine::{
    Command, Condition, EngineError, Gauges, InFlight, Replies, Reply, Report, ScheduleCommand,
    StoredAs, Subject,
};
use punctual_proto::v1;
use punctual_proto::v1::peers_client::PeersClient;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::transport::Endpoint;
use tonic::{Code, Request};

use super::*;
use crate::courier::queue::{Heard, Place, Token, Word};
use crate::listen;
use crate::telemetry::Telemetry;
use crate::tls::Tls;

const SECRET: &str = "of-the-cluster";
/// Held by nobody.
const VACANT: u16 = 7;
/// Longer than anything here may take.
const LONG: Duration = Duration::from_secs(30);

/// A broker that answers every `Get` with the version that the name of its key says.
#[derive(Debug)]
struct Told {
    /// Tells of every call that arrives.
    arrived: mpsc::UnboundedSender<String>,
    /// A call goes on when it has one of these.
    goes_on: Semaphore,
    payload: Payload,
}

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn partition(number: u16) -> PartitionId {
    PartitionId::new(number).unwrap()
}

fn get(key: &str) -> Command {
    Command::Get(Subject::Key(shop(), TaskKey::new(key).unwrap()))
}

fn new_task(payload: Payload) -> NewTask {
    let schedule = Schedule::Once(Due::In(Duration::from_secs(1)));
    let target = Target::Queue(Queue::new("orders").unwrap());
    NewTask { payload, ..NewTask::new(shop(), schedule, target) }
}

fn task(version: u64, payload: Payload) -> Task {
    let id = TaskId::floor(Timestamp::from_millis(7000));
    Task::new(id, new_task(payload).into(), Timestamp::EPOCH, Version::new(version))
}

fn fire_id() -> FireId {
    let task = TaskId::floor(Timestamp::from_millis(7000));
    FireId { task, nominal_at: Timestamp::from_millis(7000) }
}

fn keys(commands: &[Command]) -> Vec<&str> {
    let key = |command| match command {
        &Command::Get(Subject::Key(_, ref key)) => key.as_str(),
        other => panic!("not asked here: {other:?}"),
    };
    commands.iter().map(key).collect()
}

fn versions(answers: &Replies) -> Vec<u64> {
    let version = |answer: &Result<Reply, EngineError>| match answer {
        Ok(Reply::Task(task)) => task.version.get(),
        other => panic!("not answered here: {other:?}"),
    };
    answers.iter().map(version).collect()
}

impl Home for Told {
    async fn ask(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> Result<Replies, PeerError> {
        self.arrived.send(keys(&commands).join(" ")).unwrap();
        if partition.get() == VACANT {
            return Err(PeerError::NotMine);
        }
        self.goes_on.acquire().await.unwrap().forget();
        if keys(&commands).contains(&"bad") {
            return Err(PeerError::Refused("bad".to_owned()));
        }
        let version = |key: &str| key.parse().unwrap_or_default();
        let answer = |key: &str| Ok(Reply::Task(task(version(key), self.payload.clone())));
        Ok(keys(&commands).into_iter().map(answer).collect())
    }

    async fn take(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        flights: Vec<InFlight>,
    ) -> Result<Epoch, PeerError> {
        self.arrived.send(format!("take {partition} {epoch} {}", flights.len())).unwrap();
        self.goes_on.acquire().await.unwrap().forget();
        self.arrived.send("taken".to_owned()).unwrap();
        Ok(epoch.next().unwrap())
    }

    fn report(&self, partition: PartitionId, reports: Vec<Report>) -> Result<(), PeerError> {
        if partition.get() == VACANT {
            return Err(PeerError::NotMine);
        }
        self.arrived.send(format!("report {}", reports.len())).unwrap();
        Ok(())
    }

    async fn gauges(&self, namespace: Option<Namespace>) -> Result<Gauges, PeerError> {
        let loaded = namespace.map_or(2, |_| 1);
        Ok(Gauges { loaded, ..Gauges::default() })
    }

    async fn poll(
        &self,
        namespace: Namespace,
        queue: Queue,
        max: usize,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Result<Vec<Polled>, PeerError> {
        self.arrived.send(format!("poll {namespace} {queue} {max} {wait:?} {lease:?}")).unwrap();
        self.goes_on.acquire().await.unwrap().forget();
        let polled = |number| Polled {
            token: Token(number),
            lease: lease.unwrap_or_default(),
            fire_id: fire_id(),
            attempt: AttemptNo::FIRST,
            fire_at: Timestamp::EPOCH,
            fired_at: Timestamp::EPOCH,
            occasion: Occasion::Due,
            version: Version::FIRST,
            key: None,
            payload: self.payload.clone(),
        };
        Ok((0..max as u64).map(polled).collect())
    }

    fn settle(&self, place: Place<'_>, words: Vec<(Token, Word)>) -> Result<Vec<Heard>, PeerError> {
        assert_eq!(*place.namespace, shop());
        let here = place.queue.is_none_or(|queue| queue.as_str() == "orders");
        let heard = |(token, _): (Token, Word)| {
            if here && token.0 == 1 { Heard::Taken } else { Heard::Stale }
        };
        Ok(words.into_iter().map(heard).collect())
    }
}

/// The other end, in a runtime of its own, so that it can be killed whole.
struct End {
    broker: BrokerId,
    told: Arc<Told>,
    arrived: mpsc::UnboundedReceiver<String>,
    runtime: Option<Runtime>,
}

impl End {
    fn start(payload: Payload, tls: Option<Tls>) -> Self {
        let (sender, arrived) = mpsc::unbounded_channel();
        let told = Arc::new(Told { arrived: sender, goes_on: Semaphore::new(0), payload });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        // The name is in the certificate.
        let broker = BrokerId::new(&format!("localhost:{port}"));
        let builder = &mut tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let routes = Routes::new(door(Arc::clone(&told), Secret::new(SECRET).unwrap()));
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let (connections, (_end, ended)) = (GracefulShutdown::new(), watch::channel(false));
            let router = routes.into_axum_router();
            let telemetry = Telemetry::new();
            listen::accept(&listener, tls.as_ref(), router, &connections, ended, &telemetry).await;
        });
        Self { broker, told, arrived, runtime: Some(runtime) }
    }

    async fn arrived(&mut self) -> String {
        timeout(LONG, self.arrived.recv()).await.unwrap().unwrap()
    }

    fn let_go_on(&self, calls: usize) {
        self.told.goes_on.add_permits(calls);
    }

    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn peers_with(secret: &str, transport: Transport) -> Arc<Peers> {
    let secret = Secret::new(secret).unwrap();
    Arc::new(Peers::new(BrokerId::new("here:1"), secret, transport).unwrap())
}

fn peers() -> Arc<Peers> {
    peers_with(SECRET, Transport::Plain)
}

fn kind(error: &PeerError) -> &'static str {
    match error {
        PeerError::NotMine => "not mine",
        PeerError::Unreachable(_) => "unreachable",
        PeerError::Busy => "busy",
        PeerError::Lost(_) => "lost",
        PeerError::Refused(_) => "refused",
    }
}

#[tokio::test]
async fn a_peer_answers_each_command_in_order() {
    let end = End::start(Payload::Empty, None);
    end.let_go_on(1);
    let commands: Vec<_> = (0..5000).map(|number| get(&number.to_string())).collect();
    let answers = peers().ask(&end.broker, partition(0), &commands).await.unwrap();
    assert_eq!(versions(&answers), (0..5000).collect::<Vec<_>>());
}

#[tokio::test]
async fn answers_much_longer_than_a_message_arrive() {
    let end = End::start(Payload::Json(vec![b' '; 256 * 1024].into()), None);
    end.let_go_on(1);
    // More than the largest message.
    let commands: Vec<_> = (0..400).map(|number| get(&number.to_string())).collect();
    let answers = peers().ask(&end.broker, partition(0), &commands).await.unwrap();
    assert_eq!(versions(&answers), (0..400).collect::<Vec<_>>());
}

#[tokio::test]
async fn who_does_not_own_the_partition_says_so() {
    let end = End::start(Payload::Empty, None);
    let peers = peers();
    let asked = peers.ask(&end.broker, partition(VACANT), &[get("1")]).await;
    assert_eq!(asked, Err(PeerError::NotMine));
    let reported = peers.report(&end.broker, partition(VACANT), &[report()]).await;
    assert_eq!(reported, Err(PeerError::NotMine));
}

#[tokio::test]
async fn whoever_does_not_know_the_secret_is_told_nothing() {
    let mut end = End::start(Payload::Empty, None);
    end.let_go_on(9);
    let strangers = peers_with("of-another-cluster", Transport::Plain);
    let (broker, partition) = (&end.broker, partition(0));
    let (ns, queue) = (shop(), Queue::new("orders").unwrap());
    let refused = [
        strangers.ask(broker, partition, &[get("1")]).await.map(drop),
        strangers.take(broker, partition, Epoch::NONE, &[]).await.map(drop),
        strangers.report(broker, partition, &[report()]).await,
        strangers.gauges(broker, None).await.map(drop),
        strangers.poll(broker, &ns, &queue, 1, Duration::ZERO, None).await.map(drop),
        strangers.settle(broker, Place::anywhere_in(&ns), &[(Token(1), Word::Ack)]).await.map(drop),
    ];
    let want = Err(PeerError::Refused("the secret of the cluster is needed".to_owned()));
    for refused in refused {
        assert_eq!(refused, want);
    }
    assert!(end.arrived.try_recv().is_err(), "nothing got through");

    // Neither without any, nor with two, nor with a message larger than any that is read.
    let mut raw = raw(broker).await;
    let ask = |commands: Vec<u8>| {
        Request::new(v1::AskRequest { partition: 0, commands: commands.into() })
    };
    let mut twice = ask(Vec::new());
    for secret in [SECRET, "of-another-cluster"] {
        twice.metadata_mut().append("authorization", Secret::new(secret).unwrap().sent);
    }
    for request in [ask(Vec::new()), twice, ask(vec![0; MESSAGE_BYTES_MAX + 1])] {
        let status = raw.ask(request).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    }
}

async fn raw(broker: &BrokerId) -> PeersClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{broker}")).unwrap();
    PeersClient::new(endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn a_peer_of_another_version_is_told_so_before_anything_is_done() {
    let mut end = End::start(Payload::Empty, None);
    let mut client = raw(&end.broker).await;
    let message = v1::AskRequest { partition: 0, commands: vec![9, 0].into() };
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", Secret::new(SECRET).unwrap().sent);
    let status = client.ask(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "the peer speaks version 9, this broker version 1");
    assert!(matches!(PeerError::of(&status), PeerError::Refused(_)));
    assert!(end.arrived.try_recv().is_err());
}

#[tokio::test]
async fn a_peer_that_is_killed_in_a_call_leaves_it_open_and_those_behind_it_unsent() {
    let mut end = End::start(Payload::Empty, None);
    let peers = peers();
    let ask = |key: &str| tokio::spawn(peers.ask(&end.broker, partition(0), &[get(key)]));
    let first = ask("1");
    assert_eq!(end.arrived.recv().await.unwrap(), "1");
    let behind = ["2", "3"].map(ask);
    end.kill();
    let first = timeout(LONG, first).await.unwrap().unwrap().unwrap_err();
    assert_eq!(kind(&first), "lost", "{first}");
    for behind in behind {
        let behind = behind.await.unwrap().unwrap_err();
        assert_eq!(kind(&behind), "unreachable", "{behind}");
    }
    // The connection is known to be broken, and there is nobody to make another one to.
    let after = peers.ask(&end.broker, partition(0), &[get("4")]).await.unwrap_err();
    assert_eq!(kind(&after), "unreachable", "{after}");
}

/// Whatever moment a peer is killed at: what is said not to be done never arrived, and what is answered did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_failed_for_certain_was_never_seen() {
    let mut seen = [0; 3];
    for round in 0..20 {
        let mut end = End::start(Payload::Empty, None);
        end.let_go_on(100_000);
        let peers = peers();
        let callers: Vec<_> = (0..6)
            .map(|caller| {
                let (peers, broker) = (Arc::clone(&peers), end.broker.clone());
                tokio::spawn(async move {
                    let mut answered = Vec::new();
                    for number in 0..40 {
                        let key = format!("{caller}-{number}");
                        // Two callers to a partition, so that some travel together.
                        let asked = peers.ask(&broker, partition(caller / 2), &[get(&key)]).await;
                        answered.push((key, asked.map(drop)));
                    }
                    answered
                })
            })
            .collect();
        let mut arrived = BTreeSet::new();
        for _ in 0..=5 * round {
            arrived.extend(end.arrived().await.split(' ').map(str::to_owned));
        }
        end.kill();
        for caller in callers {
            for (key, answered) in caller.await.unwrap() {
                while let Ok(keys) = end.arrived.try_recv() {
                    arrived.extend(keys.split(' ').map(str::to_owned));
                }
                match answered {
                    Ok(()) => assert!(arrived.contains(&key), "{key} was answered"),
                    Err(PeerError::Lost(_)) => seen[1] += 1,
                    Err(error) => assert!(!arrived.contains(&key), "{key} arrived: {error}"),
                }
            }
        }
        seen[0] += arrived.len();
        seen[2] += 240 - arrived.len();
    }
    assert!(seen.iter().all(|seen| *seen > 0), "answered, lost and unsent: {seen:?}");
}

#[tokio::test]
async fn where_nobody_listens_nothing_was_sent() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let broker = BrokerId::new(&format!("127.0.0.1:{port}"));
    let peers = peers();
    let errors = [
        peers.ask(&broker, partition(0), &[get("1")]).await.unwrap_err(),
        peers.take(&broker, partition(0), Epoch::NONE, &[]).await.unwrap_err(),
        peers.gauges(&broker, None).await.unwrap_err(),
        peers.gauges(&BrokerId::new("no address"), None).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(kind(&error), "unreachable", "{error}");
    }
}

#[tokio::test]
async fn a_peer_that_falls_silent_is_given_up_soon_and_the_call_stays_open() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let broker = BrokerId::new(&listener.local_addr().unwrap().to_string());
    let silent = tokio::spawn(async move {
        let _connection = listener.accept().await;
        std::future::pending::<()>().await;
    });
    let asked = peers().ask(&broker, partition(0), &[get("1")]);
    let error = timeout(Duration::from_secs(8), asked).await.unwrap().unwrap_err();
    assert_eq!(kind(&error), "lost", "{error}");
    silent.abort();
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_it_is_sent() {
    let mut end = End::start(Payload::Empty, None);
    end.let_go_on(1);
    let peers = peers();
    let large = Arc::new(new_task(Payload::Json(vec![b' '; 256 * 1024].into())));
    let order = ScheduleCommand { new_task: large, condition: Condition::Always, receipt: None };
    let commands = vec![Command::Schedule(order); 330];
    let error = peers.ask(&end.broker, partition(0), &commands).await.unwrap_err();
    assert_eq!(kind(&error), "refused", "{error}");
    assert!(end.arrived.try_recv().is_err());
    let many: Vec<_> = vec![get("1"); punctual_engine::COMMANDS_MAX + 1];
    assert_eq!(peers.ask(&end.broker, partition(0), &many).await, Err(PeerError::Busy));
    assert!(peers.ask(&end.broker, partition(0), &[get("1")]).await.is_ok(), "room was given back");
}

#[tokio::test]
async fn commands_of_a_partition_stay_in_order_and_travel_together() {
    let mut end = End::start(Payload::Empty, None);
    let (peers, broker) = (peers(), end.broker.clone());
    let ask = |key: &str| tokio::spawn(peers.ask(&broker, partition(0), &[get(key)]));
    let mut asked = vec![ask("1")];
    assert_eq!(end.arrived().await, "1");
    asked.extend(["2", "3", "4"].map(ask));
    // Another partition waits for nobody.
    let elsewhere = tokio::spawn(peers.ask(&end.broker, partition(1), &[get("9")]));
    assert_eq!(end.arrived().await, "9");
    // Who has gone away meanwhile is not sent.
    asked[2].abort();
    while !asked[2].is_finished() {
        tokio::task::yield_now().await;
    }
    end.let_go_on(3);
    assert_eq!(end.arrived().await, "2 4");
    assert_eq!(versions(&elsewhere.await.unwrap().unwrap()), [9]);
    for (asked, want) in asked.into_iter().zip([Some(1), Some(2), None, Some(4)]) {
        let answers = asked.await.ok().map(|answers| versions(&answers.unwrap()));
        assert_eq!(answers, want.map(|want| vec![want]));
    }
}

#[tokio::test]
async fn a_command_that_is_refused_spoils_none_that_travel_with_it() {
    let mut end = End::start(Payload::Empty, None);
    let peers = peers();
    let ask = |key: &str| tokio::spawn(peers.ask(&end.broker, partition(0), &[get(key)]));
    let asked = ["1", "2", "bad", "3"].map(ask);
    end.let_go_on(9);
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(asked.await.unwrap().map(|answers| versions(&answers)));
    }
    let bad = Err(PeerError::Refused("bad".to_owned()));
    assert_eq!(answers, [Ok(vec![1]), Ok(vec![2]), bad, Ok(vec![3])]);
    let mut arrived = BTreeSet::new();
    while let Ok(keys) = end.arrived.try_recv() {
        arrived.insert(keys);
    }
    assert!(arrived.contains("bad"), "it was sent alone at last: {arrived:?}");
}

fn report() -> Report {
    Report::of(fire_id(), AttemptNo::FIRST, Timestamp::EPOCH, Some(Outcome::Acked))
}

#[tokio::test]
async fn a_partition_is_taken_even_if_nobody_waits_to_hear_of_it() {
    let mut end = End::start(Payload::Empty, None);
    let peers = peers();
    let flight = InFlight {
        fire_id: fire_id(),
        namespace: shop(),
        attempt: AttemptNo::FIRST,
        fired_at: Timestamp::EPOCH,
        until: Timestamp::MAX,
        stands: StoredAs::Filed,
    };
    let (broker, epoch) = (end.broker.clone(), Epoch::new(3).unwrap());
    let taking = tokio::spawn({
        let (peers, broker, flight) = (Arc::clone(&peers), broker.clone(), flight.clone());
        async move { peers.take(&broker, partition(5), epoch, &[flight]).await }
    });
    assert_eq!(end.arrived().await, "take p5 e3 1");
    taking.abort();
    assert!(taking.await.is_err());
    // Another call on the same connection: the end of the first is known there by now.
    assert!(peers.gauges(&broker, None).await.is_ok());
    end.let_go_on(2);
    assert_eq!(end.arrived().await, "taken");

    let taken = peers.take(&broker, partition(5), epoch, &[]).await;
    assert_eq!(taken, Ok(Epoch::new(4).unwrap()));
}

#[tokio::test]
async fn reports_gauges_polls_and_words_find_their_way() {
    let mut end = End::start(Payload::Json(vec![b'1'; 100_000].into()), None);
    let (peers, broker) = (peers(), end.broker.clone());
    peers.report(&broker, partition(0), &vec![report(); 25_000]).await.unwrap();
    for count in ["report 10000", "report 10000", "report 5000"] {
        assert_eq!(end.arrived().await, count);
    }
    assert_eq!(peers.gauges(&broker, None).await.unwrap().loaded, 2);
    assert_eq!(peers.gauges(&broker, Some(&shop())).await.unwrap().loaded, 1);

    let queue = Queue::new("orders").unwrap();
    end.let_go_on(1);
    let (wait, lease) = (Duration::from_secs(1), Some(Duration::from_secs(90)));
    let polled = peers.poll(&broker, &shop(), &queue, 50, wait, lease).await.unwrap();
    assert_eq!(end.arrived().await, "poll shop orders 50 1s Some(90s)");
    let tokens: Vec<u64> = polled.iter().map(|polled| polled.token.0).collect();
    assert_eq!(tokens, (0..50).collect::<Vec<_>>());

    let words = [(Token(1), Word::Ack), (Token(2), Word::Ack)];
    let (shop, other) = (shop(), Queue::new("other").unwrap());
    for (queue, first) in
        [(None, Heard::Taken), (Some(&queue), Heard::Taken), (Some(&other), Heard::Stale)]
    {
        let place = Place { namespace: &shop, queue };
        let heard = peers.settle(&broker, place, &words).await.unwrap();
        assert_eq!(heard, [first, Heard::Stale], "{queue:?}");
    }
}

#[tokio::test]
async fn polls_stand_in_nobodys_way() {
    let mut end = End::start(Payload::Empty, None);
    let (peers, broker) = (peers(), end.broker.clone());
    let polls: Vec<_> = (0..256)
        .map(|_| {
            let (peers, broker) = (Arc::clone(&peers), broker.clone());
            tokio::spawn(async move {
                let queue = Queue::new("orders").unwrap();
                peers.poll(&broker, &shop(), &queue, 1, LONG, None).await
            })
        })
        .collect();
    for _ in 0..256 {
        end.arrived().await;
    }
    let queue = Queue::new("orders").unwrap();
    let one_more = peers.poll(&broker, &shop(), &queue, 1, LONG, None).await;
    assert_eq!(one_more, Err(PeerError::Busy));
    assert!(peers.gauges(&broker, None).await.is_ok());
    end.let_go_on(256);
    for poll in polls {
        assert_eq!(poll.await.unwrap().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn peers_speak_over_tls_with_whom_their_authority_vouches_for() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let end = End::start(Payload::Empty, Some(Tls::load(&cert, &key).unwrap()));
    let of = |authority| peers_with(SECRET, Transport::Tls { authority });
    let ours = of(Some(made.cert.pem().into_bytes()));
    assert_eq!(ours.gauges(&end.broker, None).await.unwrap().loaded, 2);
    // A stranger's certificate is not spoken with, nor is the secret shown in the open.
    let error = of(None).gauges(&end.broker, None).await.unwrap_err();
    assert_eq!(kind(&error), "unreachable", "{error}");
}

#[tokio::test]
async fn links_to_those_who_left_are_dropped_and_made_again_if_they_return() {
    let end = End::start(Payload::Empty, None);
    let peers = peers();
    let (other, me) = (BrokerId::new("127.0.0.1:1"), BrokerId::new("here:1"));
    assert!(peers.gauges(&end.broker, None).await.is_ok());
    assert!(peers.gauges(&other, None).await.is_err());
    assert_eq!(peers.count(), 2);
    peers.retain(std::slice::from_ref(&other));
    assert_eq!(peers.count(), 1);
    assert!(peers.gauges(&end.broker, None).await.is_ok());
    let error = peers.gauges(&me, None).await.unwrap_err();
    assert_eq!(kind(&error), "refused", "{error}");
}

#[test]
fn a_secret_shows_itself_nowhere() {
    let secret = Secret::new(SECRET).unwrap();
    assert!(!format!("{secret:?}").contains(SECRET));
    assert!(Secret::new("").is_err());
    assert!(Secret::new("two words").is_err());
    let other = Secret::new("of-another-cluster").unwrap();
    assert!(secret.is_shown(&secret.sent) && !secret.is_shown(&other.sent));
}
