//! The edge of a broker, from outside: who may come in, what may be called, what is signed, what is told.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod field;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Channel, channel};
use std::thread;

use field::{Broker, PATIENCE, Receiver, now_millis, refused_start, task};
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEXT_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

fn bearer(token: &str) -> [(&'static str, String); 1] {
    [("authorization", format!("Bearer {token}"))]
}

fn call(broker: &Broker, method: &str, path: &str, token: &str) -> (u16, Value) {
    let [(name, value)] = bearer(token);
    broker.call(method, path, &[(name, &value)], task(r#""in": "1h""#, "http://127.0.0.1:9/"))
}

/// A receiver that answers with fixed bytes, and tells when it was called.
fn answering(answer: &'static str) -> (String, Channel<u128>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (send, called) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = vec![0; 65_536];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer.as_bytes());
            if send.send(now_millis()).is_err() {
                return;
            }
        }
    });
    (url, called)
}

/// The value of one line of the page of metrics.
fn metric(broker: &Broker, line: &str) -> f64 {
    let (status, page) = broker.call("GET", "/metrics", &[], "");
    assert_eq!(status, 200);
    let page = page.as_str().unwrap().to_owned();
    let found =
        page.lines().find_map(|got| got.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or(0.0)
}

/// Asks for a number until it is there: nothing tells of a change in it, so this is the event to wait for.
fn until_metric(broker: &Broker, line: &str, want: f64) {
    let begun = now_millis();
    while (metric(broker, line) - want).abs() > f64::EPSILON {
        assert!(now_millis() < begun + PATIENCE.as_millis(), "{line} becomes {want}");
        thread::yield_now();
    }
}

#[test]
fn a_token_opens_its_own_namespace_and_no_other() {
    let flags = ["--token", "shop=aaa", "--token", "bank=bbb", "--admin-token", "root"];
    let broker = Broker::start(&flags);
    for (method, path, token, want) in [
        ("PUT", "/v1/shop/tasks/a", "aaa", 201),
        ("PUT", "/v1/shop/tasks/a", "bbb", 403),
        ("PUT", "/v1/shop/tasks/a", "aa", 401),
        ("PUT", "/v1/shop/tasks/a", "", 401),
        ("PUT", "/v1/shop/tasks/a", "root", 200),
        ("POST", "/v1/shop/tasks", "aaa", 201),
        ("POST", "/v1/bank/tasks", "aaa", 403),
        ("GET", "/v1/shop/tasks/a", "aaa", 200),
        ("GET", "/v1/shop/tasks/a", "bbb", 403),
        ("GET", "/v1/%73hop/tasks/a", "aaa", 200),
        ("GET", "/v1/%73hop/tasks/a", "bbb", 403),
        ("GET", "/v1/no%20name/tasks/a", "aaa", 403),
        ("DELETE", "/v1/shop/tasks/a", "bbb", 403),
        ("DELETE", "/v1/shop/tasks/a", "aaa", 200),
        ("GET", "/metrics", "aaa", 403),
        ("GET", "/metrics", "", 401),
        ("GET", "/metrics", "root", 200),
        ("GET", "/livez", "", 200),
        ("GET", "/readyz", "", 200),
        ("GET", "/nowhere", "", 404),
        ("PATCH", "/v1/shop/tasks/a", "", 405),
    ] {
        let (status, answer) = call(&broker, method, path, token);
        assert_eq!(status, want, "{method} {path} with {token:?}: {answer}");
    }
    assert_eq!(broker.get("a").0, 401, "no header at all");
}

#[test]
fn an_answer_to_nobody_says_how_to_say_who_one_is() {
    let broker = Broker::start(&["--token", "shop=aaa"]);
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream
        .write_all(b"GET /v1/shop/tasks/a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
}

#[test]
fn an_address_that_may_not_be_called_is_refused_when_the_task_is_made() {
    let broker = Broker::start(&[]);
    let own = format!("http://{}/v1/shop/tasks", broker.address);
    for url in [
        own.as_str(),
        "http://169.254.169.254/latest/meta-data",
        "http://[fd00:ec2::254]/",
        "http://[::ffff:169.254.169.254]/",
        "http://10.0.0.1/",
        "http://192.168.1.1:8080/",
        "http://0.0.0.0:80/",
        "http://[fe80::1]/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
    ] {
        let (status, problem) = broker.put("a", task(r#""in": "1h""#, url));
        assert_eq!(status, 422, "{url}: {problem}");
        assert_eq!(problem["field"], "target.http.url", "{problem}");
    }
    let private = Broker::start(&["--allow-private-targets"]);
    for (url, want) in [
        ("http://10.0.0.1/", 201),
        ("http://169.254.169.254/", 422),
        ("http://100.100.100.200/", 422),
    ] {
        let (status, problem) =
            private.call("POST", "/v1/shop/tasks", &[], task(r#""in": "1h""#, url));
        assert_eq!(status, want, "{url}: {problem}");
    }
}

#[test]
fn a_name_that_leads_to_a_forbidden_address_is_refused_and_not_tried_again() {
    let broker = Broker::start(&[]);
    let port = broker.address.port();
    // The broker's own door by name, and by spellings that only the resolver understands.
    for (n, host) in ["localhost", "127.1", "2130706433"].iter().enumerate() {
        let url = format!("http://{host}:{port}/v1/shop/tasks");
        let (status, answer) = broker.put(&format!("k{n}"), task(r#""in": "0s""#, &url));
        assert_eq!(status, 201, "{answer}");
    }
    until_metric(&broker, r#"punctual_attempts_total{outcome="refused"}"#, 3.0);
    assert_eq!(metric(&broker, r#"punctual_attempts_total{outcome="failed"}"#), 0.0);
}

#[test]
fn a_broker_open_to_the_network_does_not_call_its_own_machine() {
    let start = |flags: &[&str]| {
        Broker::start_at("0.0.0.0:0", Arc::new(tempfile::tempdir().unwrap()), flags)
    };
    let body = task(r#""in": "1h""#, "http://127.0.0.1:9/");
    let broker = start(&["--insecure"]);
    assert_eq!(broker.put("a", &body).0, 422);
    let broker = start(&["--insecure", "--allow-private-targets"]);
    assert_eq!(broker.put("a", &body).0, 201);
    // Its own door stays shut, at every address that it listens on.
    for host in ["127.0.0.1", "127.0.0.2"] {
        let url = format!("http://{host}:{}/", broker.address.port());
        assert_eq!(broker.put("a", task(r#""in": "1h""#, &url)).0, 422, "{url}");
    }
    let broker = start(&["--token", "shop=aaa"]);
    assert_eq!(broker.put("a", &body).0, 401, "with a token it need not be insecure");
}

#[test]
fn a_receiver_can_verify_where_a_delivery_comes_from() {
    let own = format!("shop={SECRET}");
    let next = format!("shop={NEXT_SECRET}");
    let flags = ["--signing-secret", &own, "--signing-secret", &next];
    let (broker, receiver) = (Broker::start(&flags), Receiver::start());
    broker.put("a", task(r#""in": "0s""#, &receiver.url));
    let got = receiver.next();
    let mut headers = http::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, got.header(name).parse().unwrap());
    }
    for secret in [SECRET, NEXT_SECRET] {
        let verifier = standardwebhooks::Webhook::new(secret).unwrap();
        verifier.verify(&got.body, &headers).unwrap();
        assert!(verifier.verify(b"forged", &headers).is_err());
    }
    // Another namespace has no secret, and so no signature.
    broker.call("PUT", "/v1/bank/tasks/a", &[], task(r#""in": "0s""#, &receiver.url));
    assert_eq!(receiver.next().header("webhook-signature"), "");
}

#[test]
fn a_receiver_that_says_when_to_come_back_is_called_then() {
    let broker = Broker::start(&[]);
    let retry =
        r#""in": "0s", "retry": {"attempts_max": 2, "backoff": {"fixed": "1ms"}, "jitter": 0}"#;
    // By a clock that is years behind: only the difference counts.
    let (url, called) = answering(
        "HTTP/1.1 503 Later\r\nDate: Wed, 21 Oct 2015 07:28:00 GMT\r\n\
         Retry-After: Wed, 21 Oct 2015 07:28:01 GMT\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    );
    broker.put("date", task(retry, &url));
    let (first, second) = (called.recv_timeout(PATIENCE), called.recv_timeout(PATIENCE));
    assert!(second.unwrap() >= first.unwrap() + 1000, "the date is kept");
    let (url, called) = answering(
        "HTTP/1.1 429 Later\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    );
    broker.put("seconds", task(retry, &url));
    let (first, second) = (called.recv_timeout(PATIENCE), called.recv_timeout(PATIENCE));
    assert!(second.unwrap() >= first.unwrap() + 1000, "the seconds are kept");
}

#[test]
fn an_answer_counts_by_its_status_however_its_body_goes_on() {
    let broker = Broker::start(&[]);
    for (answer, outcome) in [
        // A body that never comes, a body that breaks off, a redirect, and something that is no HTTP at all.
        ("HTTP/1.1 200 Fine\r\nContent-Length: 100000\r\n\r\nbeginning", "acked"),
        ("HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\nx", "acked"),
        (
            "HTTP/1.1 302 There\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
            "failed",
        ),
        ("SSH-2.0-surprise\r\n", "failed"),
    ] {
        let (url, _called) = answering(answer);
        let line = format!("punctual_attempts_total{{outcome=\"{outcome}\"}}");
        let before = metric(&broker, &line);
        let once = r#""in": "0s", "retry": {"attempts_max": 1}"#;
        let (status, said) = broker.call("POST", "/v1/shop/tasks", &[], task(once, &url));
        assert_eq!(status, 201, "{said}");
        until_metric(&broker, &line, before + 1.0);
    }
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("punctual.toml");
    let config = ["--config", file.to_str().unwrap()];
    std::fs::write(&file, "tokens = [\"shop=file\"]\n").unwrap();
    // A certificate that is not there stops each of them, and its name says where it came from.
    let said = |flags: &[&str], variables: &[(&str, &str)]| {
        refused_start(&[&config[..], flags].concat(), variables)
    };
    let append = |line: &str| {
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{text}{line}\n")).unwrap();
    };
    append("tls_cert = \"/from/file\"\ntls_key = \"/key\"");
    let variable = [("PUNCTUAL_TLS_CERT", "/from/environment")];
    assert!(said(&[], &[]).contains("/from/file"));
    assert!(said(&[], &variable).contains("/from/environment"));
    assert!(said(&["--tls-cert", "/from/flag"], &variable).contains("/from/flag"));
    append("listn = 1");
    let error = said(&[], &[]);
    assert!(error.contains("unknown field `listn`") && error.contains("line 4"), "{error}");
    std::fs::remove_file(&file).unwrap();
    assert!(said(&[], &[]).contains("punctual.toml"));
}

#[test]
fn a_broker_takes_its_tokens_from_the_file_and_its_secrets_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let (file, secret) = (dir.path().join("punctual.toml"), dir.path().join("secret"));
    std::fs::write(&secret, "hush\n").unwrap();
    std::fs::write(&file, format!("tokens = [\"shop=@{}\"]\n", secret.display())).unwrap();
    let broker = Broker::start(&["--config", file.to_str().unwrap()]);
    assert_eq!(call(&broker, "PUT", "/v1/shop/tasks/a", "hush").0, 201);
    assert_eq!(call(&broker, "PUT", "/v1/shop/tasks/a", "other").0, 401);
}

#[test]
fn a_start_that_fails_repeats_no_secret() {
    for (flags, says) in [
        (&["--token", "hush"][..], "NAMESPACE=SECRET"),
        (&["--token", "shop=hush hush"], "the secret of shop"),
        (&["--admin-token", "hush hush"], "admin_tokens"),
        (&["--signing-secret", "shop=whsec_hush"], "24 to 64 bytes"),
        (&["--signing-secret", "*=hush"], "whsec_"),
        (&["--tls-cert", "/no/such/cert"], "must be given together"),
    ] {
        let said = refused_start(flags, &[]);
        assert!(said.contains(says) && !said.contains("hush"), "{said}");
    }
    let help = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["serve", "--help"])
        .env("PUNCTUAL_TOKENS", "shop=hush")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("PUNCTUAL_TOKENS") && !help.contains("hush"), "{help}");
}

#[test]
fn one_port_speaks_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let flags = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let broker = Broker::start(&flags);
    let der = CertificateDer::from(made.cert.der().to_vec());
    assert_eq!(offered(&broker, &der, &[b"h2", b"http/1.1"]), Some(b"h2".to_vec()));
    let answer = get_over_tls(&broker, &der);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("alive\n"), "{answer}");
    // Who does not speak TLS gets no HTTP.
    let mut plain = TcpStream::connect(broker.address).unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

fn tls_client(
    broker: &Broker,
    cert: &CertificateDer<'static>,
    protocols: &[&[u8]],
) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cert.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    rustls::StreamOwned::new(client, TcpStream::connect(broker.address).unwrap())
}

/// The protocol that the broker takes of those offered.
fn offered(
    broker: &Broker,
    cert: &CertificateDer<'static>,
    protocols: &[&[u8]],
) -> Option<Vec<u8>> {
    let mut stream = tls_client(broker, cert, protocols);
    stream.conn.complete_io(&mut stream.sock).unwrap();
    stream.conn.alpn_protocol().map(<[u8]>::to_vec)
}

fn get_over_tls(broker: &Broker, cert: &CertificateDer<'static>) -> String {
    let mut stream = tls_client(broker, cert, &[b"http/1.1"]);
    let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn metrics_tell_what_happened() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    broker.put("a", task(r#""in": "0s""#, &receiver.url));
    broker.get("nobody");
    receiver.next();
    until_metric(&broker, r#"punctual_attempts_total{outcome="acked"}"#, 1.0);
    let (_, page) = broker.call("GET", "/metrics", &[], "");
    let page = page.as_str().unwrap();
    for line in [
        "punctual_lag_seconds_count 1",
        "punctual_early_total 0",
        r#"punctual_requests_total{method="PUT",route="/v1/{namespace}/tasks/{key}",status="201"} 1"#,
        r#"punctual_requests_total{method="GET",route="/v1/{namespace}/tasks/{key}",status="404"} 1"#,
        "# TYPE punctual_commit_tasks histogram",
        "# TYPE punctual_commit_seconds histogram",
        "# TYPE punctual_connections gauge",
        "# TYPE punctual_build info",
        "# EOF",
    ] {
        assert!(page.lines().any(|got| got == line), "{line}\n{page}");
    }
    assert!(!page.contains("shop"), "no label has a name that a caller chose");
}

/// Whatever is wrong with a request that has a readable head, the answer is a problem document, and never a word of the libraries beneath.
#[test]
fn every_refusal_is_a_problem_document() {
    let broker = Broker::start(&[]);
    let large = "x".repeat(600_000);
    let lines = "content-type: application/x-ndjson";
    for (method, path, header, body, want, more) in [
        ("GET", "/nowhere", "", "", 404, "not-found"),
        ("GET", "/", "", "", 404, "not-found"),
        ("GET", "/v1/shop/tasks/", "", "", 404, "not-found"),
        ("POST", "/v1/shop/nothing", "", "{}", 404, "not-found"),
        ("FOO", "/nowhere", "", "", 404, "not-found"),
        ("POST", "/punctual.v1.Nobody/Nothing", "", "", 404, "not-found"),
        ("PATCH", "/v1/shop/tasks/a", "", "{}", 405, "allow: PUT, GET, DELETE\r\n"),
        ("FOO", "/v1/shop/tasks", "", "", 405, "allow: POST, GET\r\n"),
        ("OPTIONS", "/v1/shop/tasks", "", "", 405, "allow: POST, GET\r\n"),
        ("POST", "/livez", "", "", 405, "allow: GET\r\n"),
        ("POST", "/v1/shop/tasks", "content-type: text/plain", "{}", 415, "application/json or"),
        ("PUT", "/v1/shop/tasks/a", lines, "{}", 415, "application/json"),
        ("PUT", "/v1/shop/tasks/a", "", &large, 413, "524288 bytes"),
        ("PUT", "/v1/shop/tasks/a", "", "", 400, "the body is empty; it must be one task"),
        ("POST", "/v1/shop/tasks", "", " \n", 400, "the body is empty; it must be one task"),
        ("POST", "/v1/shop/cancel", "", "", 400, "the body is empty; it must be a list of keys"),
        ("POST", "/v1/shop/queues/q/ack", "", "", 400, "the body is empty; it must be a list of"),
        ("GET", "/v1/shop/tasks/%ff", "", "", 400, "percent-encoded UTF-8"),
        ("GET", "/v1/shop/tasks?%", "", "", 400, "unknown query parameter"),
    ] {
        let mut stream = TcpStream::connect(broker.address).unwrap();
        let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}");
        write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {want} ")), "{method} {path}: {answer}");
        assert!(answer.contains("content-type: application/problem+json\r\n"), "{answer}");
        let (_, problem) = answer.split_once("\r\n\r\n").unwrap();
        let problem: Value = serde_json::from_str(problem).unwrap();
        assert_eq!(problem["status"], want, "{problem}");
        for name in ["type", "title", "detail"] {
            assert!(problem[name].is_string(), "{problem}");
        }
        assert!(answer.contains(more), "{method} {path}: {more}: {answer}");
    }
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let broker = Broker::start(&[]);
    let mut stream = TcpStream::connect(broker.address).unwrap();
    let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\nx: ");
    let _ = stream.write_all(&[b'x'; 100_000]);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(broker.call("GET", "/livez", &[], ""), (200, json!("alive\n")));
}

#[test]
fn a_page_in_somebodys_browser_cannot_schedule_on_an_open_broker() {
    let broker = Broker::start(&[]);
    let own = broker.address.to_string();
    let rebound = format!("evil.example:{}", broker.address.port());
    let task = r#"{"in": "1h", "target": {"http": {"url": "http://127.0.0.1:9/"}}}"#;
    let own_page = format!("http://{own}");
    for (headers, status, kind) in [
        (vec![], 201, None),
        (vec![("origin", own_page.as_str())], 200, None),
        (vec![("origin", "https://evil.example")], 403, Some("urn:punctual:cross-origin")),
        (vec![("origin", "null")], 403, Some("urn:punctual:cross-origin")),
        (vec![("host", rebound.as_str())], 403, Some("urn:punctual:host-not-allowed")),
    ] {
        let (got, answer) = broker.call("PUT", "/v1/shop/tasks/a", &headers, task);
        assert_eq!(got, status, "{headers:?}: {answer}");
        assert_eq!(answer["type"].as_str(), kind, "{headers:?}: {answer}");
    }
    // Whoever has a token is no page.
    let broker = Broker::start(&["--token", "shop=hush"]);
    let headers = [("authorization", "Bearer hush"), ("origin", "https://app.example")];
    assert_eq!(broker.call("PUT", "/v1/shop/tasks/a", &headers, task).0, 201);
}

#[test]
fn a_request_that_is_refused_at_the_gate_leaves_its_connection_for_the_next_and_is_counted() {
    let broker = Broker::start(&[]);
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let host = broker.address;
    let refused = |method: &str, header: &str| {
        format!(
            "{method} /v1/shop/tasks HTTP/1.1\r\nhost: {host}\r\n{header}content-length: 9\r\n\r\n{{\"a\": 1}}\n"
        )
    };
    for (request, status) in [
        (refused("PATCH", ""), "405"),
        (refused("POST", "origin: https://evil.example\r\n"), "403"),
        (format!("GET /livez HTTP/1.1\r\nhost: {host}\r\n\r\n"), "200"),
    ] {
        stream.write_all(request.as_bytes()).unwrap();
        let answer = answer_on(&mut stream);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    let line =
        r#"punctual_requests_total{method="POST",route="/v1/{namespace}/tasks",status="403"}"#;
    until_metric(&broker, line, 1.0);
}

#[test]
fn a_body_that_nobody_reads_and_that_comes_late_does_not_cost_its_connection() {
    let broker = Broker::start(&[]);
    let mut stream = TcpStream::connect(broker.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let host = broker.address;
    for (method, path, status) in [
        ("GET", "/v1/shop/stats", "200"),
        ("POST", "/v1/shop/tasks/none/pause", "404"),
        ("POST", "/v1/no%20name/tasks", "422"),
        ("GET", "/nowhere", "404"),
    ] {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 9\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // By then the first request has been looked at.
        for _ in 0..10 {
            assert_eq!(broker.call("GET", "/livez", &[], "").0, 200);
        }
        stream.write_all(b"{\"a\": 1}\n").unwrap();
        let answer = answer_on(&mut stream);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
    }
}

/// Bytes of memory that a process has.
fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn ten_thousand_connections_that_say_nothing_hold_up_nobody() {
    const CROWD: u32 = 10_000;
    const BYTES_EACH_MAX: u64 = 64 * 1024;
    let own = std::process::id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &own, "--nofile=12000:"]).status();
    assert!(raised.is_ok_and(|status| status.success()), "as many open files must be allowed");
    let broker = Broker::start(&[]);
    let before = resident_bytes(broker.pid());
    let host = broker.address;
    let whole = format!("GET /livez HTTP/1.1\r\nhost: {host}\r\n\r\n");
    let open = format!("POST /v1/shop/tasks HTTP/1.1\r\nhost: {host}\r\ncontent-length: 9\r\n\r\n");
    let crowd: Vec<TcpStream> = (0..CROWD)
        .map(|number| {
            let mut stream = TcpStream::connect(host).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            match number % 4 {
                0 => {}
                1 => stream.write_all(&whole.as_bytes()[..20]).unwrap(),
                2 => stream.write_all(open.as_bytes()).unwrap(),
                _ => {
                    // Answered once, and silent since.
                    stream.write_all(whole.as_bytes()).unwrap();
                    assert!(answer_on(&mut stream).starts_with("HTTP/1.1 200 "));
                }
            }
            stream
        })
        .collect();
    assert!(metric(&broker, "punctual_connections") >= f64::from(CROWD), "all are accepted");
    let each = resident_bytes(broker.pid()).saturating_sub(before) / u64::from(CROWD);
    assert!(each < BYTES_EACH_MAX, "{each} bytes for each");
    // Whoever says something is served, and what is due is sent.
    let receiver = Receiver::start();
    assert_eq!(broker.put("a", task(r#""in": "10ms""#, &receiver.url)).0, 201);
    assert_eq!(receiver.next().header("punctual-key"), "a");
    drop(crowd);
    let begun = now_millis();
    while metric(&broker, "punctual_connections") > 10.0 {
        assert!(now_millis() < begun + PATIENCE.as_millis(), "those who are gone are not counted");
        thread::yield_now();
    }
}

/// One answer, by its length, from a connection that stays open.
fn answer_on(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            length.and_then(|length| length.parse().ok()).unwrap_or(0) <= body.len()
        });
        if whole {
            return text;
        }
        let read = stream.read(&mut buffer).unwrap();
        assert_ne!(read, 0, "the connection was given up: {text}");
        answer.extend_from_slice(&buffer[..read]);
    }
}
