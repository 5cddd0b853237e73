//! Namespaces are apart: what one of them uses up at the API is left to the others.

use std::convert::Infallible;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use punctual_proto::v1;
use punctual_proto::v1::tasks_client::TasksClient;
use punctual_proto::v1::worker_message::Message as ToBroker;
use punctual_proto::v1::workers_client::WorkersClient;
use punctual_test_support::{TestBroker, WAIT_MAX, read_answer, wait_for};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

const LARGE: usize = 600_000;
const LINES: [(&str, &str); 1] = [("content-type", "application/x-ndjson")];

/// A request whose body does not end: `sent` bytes of it arrive.
fn stalled(address: SocketAddr, path: &str, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(2 * WAIT_MAX)).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/x-ndjson\r\n\
         content-length: {}\r\n\r\n",
        2 * LARGE
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b'\n'; sent]).unwrap();
    stream
}

/// Whether an answer has arrived. It must be read from then on.
fn is_answered(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Sends a large batch without tasks. Returns the status and the problem.
fn large_batch(broker: &TestBroker, namespace: &str, token: &str) -> (u16, String) {
    let token = format!("Bearer {token}");
    let headers = [LINES[0], ("authorization", &token)];
    let path = format!("/v1/{namespace}/tasks");
    let (status, answer) = broker.call("POST", &path, &headers, vec![b'\n'; LARGE]);
    (status, answer["detail"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn stalled_uploads_of_one_namespace_do_not_hold_up_another() {
    let broker = TestBroker::start(&[]);
    let mut uploads: Vec<_> =
        (0..8).map(|_| stalled(broker.address, "/v1/hog/tasks", LARGE)).collect();
    // Several, because the broker may read the first before it has read the uploads.
    for _ in 0..10 {
        assert_eq!(large_batch(&broker, "shop", "").0, 200);
    }
    // None of the uploads has failed before: those with a share still have their time.
    let mut answers: Vec<_> =
        uploads.iter_mut().filter(|stream| is_answered(stream)).map(read_answer).collect();
    assert!(answers.iter().all(|answer| answer.contains("429")), "{answers:?}");
    uploads.retain(|stream| !is_answered(stream));
    answers.extend(uploads.iter_mut().map(read_answer));
    // Then each of them sees the limit that it met.
    for (status, limit, want) in [
        ("408", "the body must arrive within 30s", 4),
        ("429", "the 8 bodies over 512 KiB in progress", 4),
    ] {
        let status = format!("HTTP/1.1 {status} ");
        let met = answers.iter().filter(|it| it.starts_with(&status) && it.contains(limit));
        assert_eq!(met.count(), want, "{limit}: {answers:#?}");
    }
}

/// A body of gRPC messages that does not end: `sent` bytes of a message of a megabyte.
fn stalled_message(
    address: SocketAddr,
    path: &str,
    token: &str,
    (pieces, sent): (usize, &Arc<AtomicUsize>),
) -> impl Future<Output = ()> + Send + use<> {
    const PIECE: usize = 64 << 10;
    let mut first = vec![0; PIECE];
    first[1..5].copy_from_slice(&(1u32 << 20).to_be_bytes());
    // Field 1: the namespace.
    first[5..10].copy_from_slice(b"\x0a\x03hog");
    let rest = std::iter::repeat_n(Bytes::from(vec![0; PIECE]), pieces - 1);
    let sent = Arc::clone(sent);
    let frames = std::iter::once(Bytes::from(first)).chain(rest).map(move |piece| {
        sent.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Frame::data(piece))
    });
    let body = StreamBody::new(tokio_stream::iter(frames).chain(tokio_stream::pending()));
    let request = http::Request::post(format!("http://{address}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {token}"))
        .body(body)
        .unwrap();
    async move {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let io = TokioIo::new(stream);
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let answer = sender.send_request(request).await;
        // The answer of a stream comes before its end.
        std::future::pending::<()>().await;
        drop(answer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_and_large_bodies_use_the_same_share() {
    let broker = TestBroker::start(&["--token", "hog=bbb", "--token", "shop=aaa"]);
    let sent = Arc::new(AtomicUsize::new(0));
    for path in ["Schedule", "ScheduleMany", "Cancel", "Touch"] {
        let path = format!("/punctual.v1.Tasks/{path}");
        tokio::spawn(stalled_message(broker.address, &path, "bbb", (10, &sent)));
    }
    tokio::task::spawn_blocking(move || {
        // More than a client may send ahead of the broker, which has therefore begun to read.
        wait_for("all messages", || sent.load(Ordering::Relaxed) == 40);
        let (status, detail) = large_batch(&broker, "hog", "bbb");
        assert_eq!(status, 429, "{detail}");
        assert!(detail.contains("\"hog\" has used up its share of the 8 bodies"), "{detail}");
        assert_eq!(large_batch(&broker, "shop", "aaa").0, 200);
    })
    .await
    .unwrap();
}

/// An open broker has no caller to go by: the namespace that a message begins with counts.
#[tokio::test(flavor = "multi_thread")]
async fn large_messages_without_tokens_use_the_share_of_their_namespace() {
    let broker = TestBroker::start(&[]);
    let sent = Arc::new(AtomicUsize::new(0));
    for _ in 0..8 {
        let path = "/punctual.v1.Tasks/Touch";
        tokio::spawn(stalled_message(broker.address, path, "", (10, &sent)));
    }
    tokio::task::spawn_blocking(move || {
        wait_for("four messages", || sent.load(Ordering::Relaxed) >= 40);
        assert_eq!(large_batch(&broker, "shop", "").0, 200);
        let (status, detail) = large_batch(&broker, "hog", "");
        assert_eq!(status, 429, "{detail}");
    })
    .await
    .unwrap();
}

async fn channel(broker: &TestBroker) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", broker.address)).unwrap();
    endpoint.connect().await.unwrap()
}

fn hello(namespace: &str) -> v1::WorkerMessage {
    let hello = v1::Hello {
        namespace: namespace.to_owned(),
        queues: vec!["q".to_owned()],
        ..v1::Hello::default()
    };
    v1::WorkerMessage { message: Some(ToBroker::Hello(hello)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_sends_nothing_ends() {
    let broker = TestBroker::start(&[]);
    let channel = channel(&broker).await;
    let mut tasks = TasksClient::new(channel.clone());
    let batches = tasks.schedule_many(tokio_stream::pending()).await.unwrap();
    let mut batches = batches.into_inner();
    let mut workers = WorkersClient::new(channel);
    let ends = async { tokio::join!(batches.message(), workers.work(tokio_stream::pending())) };
    let (batches, work) = tokio::time::timeout(WAIT_MAX, ends).await.expect("both end");
    for status in [batches.unwrap_err(), work.unwrap_err()] {
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert_eq!(status.message(), "the first message must arrive within 10s");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_streams_and_long_polls_of_one_namespace_are_limited() {
    const STREAMS_MAX: usize = 4_096;
    const LIMIT: &str = "\"hog\" has used up its share of the 8192 long polls and streams";
    let broker = TestBroker::start(&[]);
    let mut open = Vec::new();
    let mut workers = WorkersClient::new(channel(&broker).await);
    let refused = loop {
        // A connection has at most 256 streams.
        if open.len() % 200 == 199 {
            workers = WorkersClient::new(channel(&broker).await);
        }
        let (sender, messages) = mpsc::channel(1);
        sender.send(hello("hog")).await.unwrap();
        match workers.work(ReceiverStream::new(messages)).await {
            Ok(stream) => open.push((sender, stream)),
            Err(status) => break status,
        }
        assert!(open.len() <= STREAMS_MAX, "no limit");
    };
    assert_eq!((open.len(), refused.code()), (STREAMS_MAX, Code::ResourceExhausted), "{refused}");
    assert!(refused.message().contains(LIMIT), "{refused}");
    let messages = tokio_stream::once(hello("shop")).chain(tokio_stream::pending());
    assert!(workers.work(messages).await.is_ok(), "another namespace has its own share");
    let (broker, (status, problem)) = tokio::task::spawn_blocking(move || {
        let polled = broker.call("POST", "/v1/hog/queues/q/lease", &[], "");
        (broker, polled)
    })
    .await
    .unwrap();
    assert_eq!(status, 429, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains(LIMIT), "{problem}");
    // Streams that end give their permits back.
    open.clear();
    tokio::task::spawn_blocking(move || {
        wait_for("permits", || broker.call("POST", "/v1/hog/queues/q/lease", &[], "").0 == 200);
    })
    .await
    .unwrap();
}

/// A page that its client does not read takes memory, so it counts as a list in progress.
#[tokio::test(flavor = "multi_thread")]
async fn unread_pages_of_one_namespace_are_limited() {
    let broker = TestBroker::start(&[]);
    let payload = "x".repeat(200_000);
    let task = format!(r#"{{"in": "1h", "target": {{"queue": "q"}}, "payload": "{payload}"}}"#);
    for namespace in ["hog", "shop"] {
        let path = format!("/v1/{namespace}/tasks/a");
        assert_eq!(broker.call("PUT", &path, &[], &task).0, 201);
    }
    let address = broker.address;
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let client = client.initial_stream_window_size(0).handshake(TokioIo::new(stream));
    let (mut sender, connection) = client.await.unwrap();
    tokio::spawn(connection);
    let mut answers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let request = http::Request::get(format!("http://{address}/v1/hog/tasks"));
        let request = request.body(http_body_util::Empty::<Bytes>::new()).unwrap();
        sender.ready().await.unwrap();
        answers.spawn(sender.send_request(request));
    }
    let mut unread = Vec::new();
    while let Some(answer) = answers.join_next().await {
        unread.push(answer.unwrap().unwrap());
        if unread.len() == 4 {
            // The others wait, and another namespace does not.
            let path = "/v1/shop/tasks";
            let listed = tokio::task::block_in_place(|| broker.call("GET", path, &[], ""));
            assert_eq!(listed.0, 200);
        }
    }
    let mut statuses: Vec<_> = unread.iter().map(|answer| answer.status().as_u16()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
}

/// Sends as many batches as the broker takes, and reads no response.
async fn unread_batches(
    broker: &TestBroker,
    namespace: &str,
) -> tonic::Streaming<v1::ScheduledBatch> {
    let endpoint = Endpoint::from_shared(format!("http://{}", broker.address)).unwrap();
    let channel = endpoint.initial_stream_window_size(0).connect().await.unwrap();
    let batch = v1::ScheduleBatch {
        namespace: namespace.to_owned(),
        tasks: vec![v1::NewTask::default(); 10_000],
        ..v1::ScheduleBatch::default()
    };
    let batches = tokio_stream::iter(std::iter::repeat_n(batch, 20)).chain(tokio_stream::pending());
    TasksClient::new(channel).schedule_many(batches).await.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_reads_no_responses_does_not_hold_up_batches_of_another() {
    let broker = TestBroker::start(&[]);
    let mut unread = Vec::new();
    for _ in 0..4 {
        unread.push(unread_batches(&broker, "hog").await);
    }
    let mut tasks = TasksClient::new(channel(&broker).await);
    for _ in 0..20 {
        let batch = v1::ScheduleBatch {
            namespace: "shop".to_owned(),
            tasks: vec![v1::NewTask::default(); 1_000],
            ..v1::ScheduleBatch::default()
        };
        let scheduled = async {
            let mut answers = tasks.schedule_many(tokio_stream::once(batch)).await?.into_inner();
            answers.message().await
        };
        let scheduled = tokio::time::timeout(WAIT_MAX, scheduled).await.expect("an answer");
        assert_eq!(scheduled.unwrap().unwrap().results.len(), 1_000);
    }
}

#[test]
fn forecasts_of_one_namespace_are_limited_and_another_is_answered() {
    let broker = TestBroker::start(&[]);
    // Each forecast computes a million cron times.
    for key in ["a", "b"] {
        let task = r#"{"cron": "* * * * * *", "target": {"queue": "q"}}"#;
        assert_eq!(broker.call("PUT", &format!("/v1/hog/tasks/{key}"), &[], task).0, 201);
    }
    let mut open: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(broker.address).unwrap();
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            let path = "/v1/hog/forecast?for=366d&step=24h";
            write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let (status, forecast) = broker.call("GET", "/v1/shop/forecast", &[], "");
    assert_eq!((status, &forecast["complete"]), (200, &serde_json::json!(true)));
    // Four are computed at a time, and 64 wait.
    let mut refused = 0;
    wait_for("a refusal", || {
        for stream in open.extract_if(.., |stream| is_answered(stream)) {
            let mut stream = stream;
            let answer = read_answer(&mut stream);
            if answer.starts_with("HTTP/1.1 429 ") {
                refused += 1;
                assert!(answer.contains("the 8 lists and forecasts in progress"), "{answer}");
                assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
            }
        }
        refused > 0
    });
}

/// Sends a gRPC call with an empty message. Returns its gRPC status.
async fn grpc_status(address: SocketAddr, path: &str, token: Option<&str>) -> Code {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://{address}{path}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    let request = match token {
        Some(token) => request.header("authorization", format!("Bearer {token}")),
        None => request,
    };
    let body = http_body_util::Full::new(Bytes::from_static(&[0; 5]));
    let answer = sender.send_request(request.body(body).unwrap()).await.unwrap();
    let (head, body) = answer.into_parts();
    let trailers = async {
        let collected = http_body_util::BodyExt::collect(body).await.unwrap();
        collected.trailers().cloned().unwrap_or_default()
    };
    let status = match head.headers.get("grpc-status").cloned() {
        Some(status) => Some(status),
        None => trailers.await.get("grpc-status").cloned(),
    };
    Code::from_bytes(status.expect("a status").as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_grpc_call_but_health_needs_a_token() {
    let broker = TestBroker::start(&["--token", "shop=aaa", "--admin-token", "root"]);
    let address = broker.address;
    let invalid = Code::InvalidArgument;
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let old_reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
    for (path, with_token) in [
        ("/punctual.v1.Tasks/Schedule", invalid),
        ("/punctual.v1.Tasks/ScheduleMany", invalid),
        ("/punctual.v1.Tasks/Cancel", invalid),
        ("/punctual.v1.Tasks/Touch", invalid),
        ("/punctual.v1.Tasks/Get", invalid),
        ("/punctual.v1.Tasks/List", invalid),
        ("/punctual.v1.Workers/Work", invalid),
        (reflection, invalid),
        (old_reflection, invalid),
    ] {
        for token in [None, Some(""), Some("aa"), Some("aaa b")] {
            let status = grpc_status(address, path, token).await;
            assert_eq!(status, Code::Unauthenticated, "{path} {token:?}");
        }
        for token in ["aaa", "root"] {
            assert_eq!(grpc_status(address, path, Some(token)).await, with_token, "{path}");
        }
    }
    assert_eq!(grpc_status(address, "/grpc.health.v1.Health/Check", None).await, Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_watches_are_limited() {
    let broker = TestBroker::start(&[]);
    let mut open = Vec::new();
    let refused = loop {
        let mut health = tonic_health::pb::health_client::HealthClient::new(channel(&broker).await);
        let watched: Result<Vec<_>, _> = async {
            let mut streams = Vec::new();
            for _ in 0..200 {
                let request = tonic_health::pb::HealthCheckRequest::default();
                streams.push(health.watch(request).await?);
            }
            Ok::<_, tonic::Status>(streams)
        }
        .await;
        match watched {
            Ok(streams) => open.extend(streams),
            Err(status) => break status,
        }
        assert!(open.len() < 2_000, "no limit");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("all of the 1024 health watches"), "{refused}");
    let mut none = [0; 1];
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET /livez HTTP/1.1\r\nhost: {}\r\n\r\n", broker.address).unwrap();
    assert_eq!(stream.read(&mut none).unwrap(), 1, "others are served");
}
