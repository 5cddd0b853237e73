//! Callers without a token: nothing of theirs is kept, whatever they send.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use punctual_test_support::{TestBroker, WAIT_MAX, memory_bytes, read_answer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;

/// The calls whose messages a broker without the check would read.
const GRPC_CALLS: [&str; 5] = [
    "/punctual.v1.Tasks/Schedule",
    "/punctual.v1.Tasks/ScheduleMany",
    "/punctual.v1.Workers/Work",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.health.v1.Health/Check",
];
const CONNECTIONS: usize = 200;
const STREAMS: usize = 32;
const ROUNDS: usize = 3;
/// The size of one message or body, and of the pieces in which it is sent.
const MESSAGE_BYTES: usize = 4 << 20;
const PIECE_BYTES: usize = 64 << 10;
/// What callers without a token may make the broker use, above what it uses when it is idle.
const ABOVE_IDLE_MAX: u64 = 64 << 20;

/// Sends one message per stream on one HTTP/2 connection, and leaves every stream open.
async fn flood_h2(address: SocketAddr, calls: &[&str]) {
    let Ok(stream) = tokio::net::TcpStream::connect(address).await else { return };
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let Ok((mut sender, connection)) = handshake.await else { return };
    let connection = tokio::spawn(connection);
    let mut answers = JoinSet::new();
    for number in 0..STREAMS {
        let mut first = vec![0; PIECE_BYTES];
        first[1..5].copy_from_slice(&u32::try_from(MESSAGE_BYTES).unwrap().to_be_bytes());
        let pieces =
            std::iter::repeat_n(Bytes::from_static(&[0; PIECE_BYTES]), MESSAGE_BYTES / PIECE_BYTES);
        let pieces = std::iter::once(Bytes::from(first)).chain(pieces);
        let frames = pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
        let body = StreamBody::new(tokio_stream::iter(frames).chain(tokio_stream::pending()));
        let uri = format!("http://{address}{}", calls[number % calls.len()]);
        let request = http::Request::post(uri).header("content-type", "application/grpc");
        let request = request.header("te", "trailers").body(body).unwrap();
        if sender.ready().await.is_err() {
            break;
        }
        answers.spawn(sender.send_request(request));
    }
    while answers.join_next().await.is_some() {}
    connection.abort();
}

/// Sends one body on an HTTP/1 connection, as far as the broker reads it.
async fn flood_h1(address: SocketAddr) {
    let Ok(mut stream) = tokio::net::TcpStream::connect(address).await else { return };
    let head = format!(
        "POST /v1/shop/tasks HTTP/1.1\r\nhost: {address}\r\ncontent-length: {MESSAGE_BYTES}\r\n\r\n"
    );
    let mut sent = stream.write_all(head.as_bytes()).await;
    for _ in 0..MESSAGE_BYTES / PIECE_BYTES {
        if sent.is_ok() {
            sent = stream.write_all(&[b' '; PIECE_BYTES]).await;
        }
    }
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// Watches the memory of a broker until `work` is done. Returns how far it was above `idle`.
async fn most_above(idle: u64, pid: u32, work: impl Future<Output = ()>) -> u64 {
    let most = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&most);
    let watching = async move {
        loop {
            let above = memory_bytes(pid, "VmHWM").saturating_sub(idle);
            seen.fetch_max(above, Ordering::Relaxed);
            assert!(above <= ABOVE_IDLE_MAX, "{} MiB above idle", above >> 20);
            tokio::task::yield_now().await;
        }
    };
    let work = tokio::time::timeout(4 * WAIT_MAX, work);
    tokio::select! {
        () = watching => {}
        worked = work => worked.expect("every call is answered"),
    }
    most.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_without_a_token_are_not_kept() {
    let broker = TestBroker::start(&["--token", "shop=aaa"]);
    let (address, pid) = (broker.address, broker.pid());
    let idle = memory_bytes(pid, "VmRSS");
    let flood = async {
        let mut floods = JoinSet::new();
        for number in 0..CONNECTIONS {
            floods.spawn(async move {
                for _ in 0..ROUNDS {
                    match number % 4 {
                        0 => flood_h1(address).await,
                        1 => flood_h2(address, &["/v1/shop/tasks"]).await,
                        _ => flood_h2(address, &GRPC_CALLS).await,
                    }
                }
            });
        }
        while floods.join_next().await.is_some() {}
    };
    let above = most_above(idle, pid, flood).await;
    println!("{} KiB above {} KiB idle", above >> 10, idle >> 10);
    // The broker still serves those that have one.
    let token = [("authorization", "Bearer aaa")];
    assert_eq!(broker.call("GET", "/v1/shop/stats", &token, "").0, 200);
}

/// A head that never ends, a connection that sends nothing, and answers that are not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_token_are_limited_in_number_and_memory() {
    const OPENED: usize = 2_000;
    let broker = TestBroker::start(&["--token", "shop=aaa"]);
    let (address, pid) = (broker.address, broker.pid());
    let idle = memory_bytes(pid, "VmRSS");
    let opening = async {
        let mut open = Vec::new();
        for number in 0..OPENED {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let begun = match number % 3 {
                0 => Vec::new(),
                1 => {
                    [b"GET /livez HTTP/1.1\r\nhost: a\r\nx: ".as_slice(), &[b'x'; 15_000]].concat()
                }
                _ => unread_answers(),
            };
            let _ = stream.write_all(&begun).await;
            open.push(stream);
        }
        // The last ones are in the queue of the listener; the broker accepts when it closes others.
        tokio::task::spawn_blocking({
            let token = [("authorization", "Bearer aaa")];
            move || {
                assert_eq!(broker.call("GET", "/v1/shop/stats", &token, "").0, 200);
                (broker, open)
            }
        })
        .await
        .unwrap()
    };
    let mut held = None;
    let above = most_above(idle, pid, async { held = Some(opening.await) }).await;
    println!("{} KiB above {} KiB idle", above >> 10, idle >> 10);
    let (broker, open) = held.unwrap();
    let page = broker.call("GET", "/livez", &[], "");
    assert_eq!(page.0, 200);
    // The oldest ones were closed.
    let closed = open.iter().filter(|stream| is_closed(stream)).count();
    assert!(closed > OPENED / 2, "{closed} of them are closed");
}

fn is_closed(stream: &tokio::net::TcpStream) -> bool {
    loop {
        match stream.try_read(&mut [0; 16_384]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// The beginning of an HTTP/2 connection: a hundred requests whose answers are never read.
fn unread_answers() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for number in 0..100u32 {
        // GET, http, /livez: literals without indexing.
        let block = [0x82, 0x86, 0x04, 0x06, b'/', b'l', b'i', b'v', b'e', b'z', 0x01, 0x01, b'a'];
        bytes.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), 1, 0x05]);
        bytes.extend_from_slice(&(2 * number + 1).to_be_bytes());
        bytes.extend_from_slice(&block);
    }
    bytes
}

/// A caller that is refused sees why, and its connection is closed after some refusals.
#[test]
fn a_connection_is_closed_after_some_requests_without_a_token() {
    let broker = TestBroker::start(&["--token", "shop=aaa"]);
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut answered = 0;
    let request = format!("GET /v1/shop/stats HTTP/1.1\r\nhost: {}\r\n\r\n", broker.address);
    loop {
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        answered += 1;
        if answer.contains("connection: close\r\n") {
            break;
        }
        assert!(answered < 1_000, "the connection is never closed");
    }
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "closed after {answered} answers");
    // With a token it stays open.
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let request = request.replace("\r\n\r\n", "\r\nauthorization: Bearer aaa\r\n\r\n");
    for _ in 0..2 * answered {
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}
