//! TLS of the broker's own port, and of webhooks.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Channel, channel};
use std::thread;

use punctual_test_support::{TestBroker, WAIT_MAX, eventually, now_millis, refused_start, task};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn one_port_speaks_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let flags = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let broker = TestBroker::start(&flags);
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
    broker: &TestBroker,
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
    broker: &TestBroker,
    cert: &CertificateDer<'static>,
    protocols: &[&[u8]],
) -> Option<Vec<u8>> {
    let mut stream = tls_client(broker, cert, protocols);
    stream.conn.complete_io(&mut stream.sock).unwrap();
    stream.conn.alpn_protocol().map(<[u8]>::to_vec)
}

fn get_over_tls(broker: &TestBroker, cert: &CertificateDer<'static>) -> String {
    let mut stream = tls_client(broker, cert, &[b"http/1.1"]);
    let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// An authority that signs certificates, and the file that has its own.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
    _dir: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("authority.pem");
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), file, _dir: dir }
    }

    /// A certificate for a name, and its key.
    fn sign(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn flags(&self) -> [&str; 2] {
        ["--webhook-ca", self.file.to_str().unwrap()]
    }
}

/// A receiver that speaks TLS; its URL by the name `localhost`, and the requests that it got.
fn receiver((certificate, key): (rcgen::Certificate, KeyPair)) -> (String, Channel<String>) {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let (send, got) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let tls = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(tls, stream.unwrap());
            let mut request = Vec::new();
            let mut bytes = [0; 4096];
            while !request.ends_with(b"}") {
                // A client that does not believe us breaks off.
                let Ok(read @ 1..) = stream.read(&mut bytes) else { break };
                request.extend_from_slice(&bytes[..read]);
            }
            if !request.is_empty() {
                let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer.as_bytes()).unwrap();
                let _ = send.send(String::from_utf8(request).unwrap());
            }
        }
    });
    (url, got)
}

/// What a fire came to that is tried once, by the history of its task.
fn attempt_at(broker: &TestBroker, url: &str, timeout: &str) -> Value {
    let wishes = format!(r#""in": "0s", "timeout": "{timeout}", "retry": {{"attempts_max": 1}}"#);
    let (status, made) = broker.call("POST", "/v1/shop/tasks", &[], task(&wishes, url));
    assert_eq!(status, 201, "{made}");
    let path = format!("/v1/shop/tasks/{}/fires", made["id"].as_str().unwrap());
    let fire = eventually(|| {
        let (_, answer) = broker.call("GET", &path, &[], "");
        Some(answer["fires"][0].clone()).filter(|fire| fire["end"].is_string())
    });
    assert_eq!(fire["attempts"].as_array().unwrap().len(), 1, "{fire}");
    fire["attempts"][0].clone()
}

#[test]
fn a_receiver_with_a_certificate_of_a_trusted_authority_is_called() {
    let authority = Authority::new();
    let broker = TestBroker::start(&authority.flags());
    let (url, got) = receiver(authority.sign("localhost"));
    assert_eq!(attempt_at(&broker, &url, "10s")["outcome"], "acked");
    let request = got.recv_timeout(WAIT_MAX).unwrap();
    assert!(request.starts_with("POST / HTTP/1.1\r\n"), "{request}");
    assert!(request.ends_with(r#"{"order": 1}"#), "{request}");
}

#[test]
fn a_receiver_that_cannot_show_who_it_is_gets_nothing_and_history_says_why() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let broker = TestBroker::start(&authority.flags());
    for (certificate, says) in [
        (stranger.sign("localhost"), "--webhook-ca"),
        (authority.sign("elsewhere.example"), "not valid for name \"localhost\""),
    ] {
        let (url, got) = receiver(certificate);
        let attempt = attempt_at(&broker, &url, "10s");
        assert_eq!(attempt["outcome"], "failed");
        assert!(attempt["answer"].as_str().unwrap().contains(says), "{attempt}");
        assert!(got.try_recv().is_err(), "nothing was sent");
    }
    // Without the setting its authority is one of many that nobody knows.
    let broker = TestBroker::start(&[]);
    let (url, _got) = receiver(authority.sign("localhost"));
    let attempt = attempt_at(&broker, &url, "10s");
    assert!(attempt["answer"].as_str().unwrap().contains("--webhook-ca"), "{attempt}");
}

#[test]
fn a_receiver_that_never_agrees_on_tls_holds_an_attempt_no_longer_than_its_timeout() {
    let broker = TestBroker::start(&[]);
    // It accepts, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", silent.local_addr().unwrap().port());
    let begun = now_millis();
    assert_eq!(attempt_at(&broker, &url, "300ms")["outcome"], "expired");
    assert!(now_millis() - begun >= 300);
}

#[test]
fn an_authority_that_will_not_do_stops_the_start_wherever_it_was_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("punctual.toml");
    std::fs::write(&file, "webhook_ca = \"/from/file\"\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    for (said, path) in [
        (refused_start(&["--webhook-ca", "/from/flag"], &[]), "/from/flag"),
        (refused_start(&[], &[("PUNCTUAL_WEBHOOK_CA", "/from/environment")]), "/from/environment"),
        (refused_start(&config, &[]), "/from/file"),
    ] {
        assert!(said.contains("webhook_ca") && said.contains(path), "{said}");
    }
}

type Stream = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

/// A certificate of its own authority, in two files; what a client has to believe.
fn put_certificate(cert: &Path, key: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(cert, made.cert.pem()).unwrap();
    std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

/// A connection to the broker, if it shows this certificate.
fn enter(broker: &TestBroker, believed: &CertificateDer<'static>) -> Option<Stream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(believed.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = Stream::new(client, TcpStream::connect(broker.address).unwrap());
    stream.conn.complete_io(&mut stream.sock).ok()?;
    Some(stream)
}

/// The body of an answer on a connection that stays open.
fn ask(stream: &mut Stream, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap();
        assert_ne!(read, 0, "the connection is open");
        answer.extend_from_slice(&bytes[..read]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length.is_some_and(|length| body.len() >= length.parse().unwrap()) {
            return body.to_owned();
        }
    }
}

#[test]
fn a_renewed_certificate_is_shown_to_new_connections_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let first = put_certificate(&cert, &key);
    let flags = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let broker = TestBroker::start(&flags);
    let mut old = enter(&broker, &first).unwrap();
    assert_eq!(ask(&mut old, "/livez"), "alive\n");

    let second = put_certificate(&cert, &key);
    let mut new = eventually(|| enter(&broker, &second));
    assert_eq!(ask(&mut new, "/livez"), "alive\n");
    assert!(enter(&broker, &first).is_none(), "the one of before is shown to nobody");
    assert_eq!(ask(&mut old, "/livez"), "alive\n", "who is in stays in");

    // A key that belongs to another certificate.
    put_certificate(&dir.path().join("other.pem"), &key);
    let ready = eventually(|| {
        let mut stream = enter(&broker, &second).expect("the good one is kept");
        Some(ask(&mut stream, "/readyz")).filter(|ready| ready.contains("tls:"))
    });
    let ready: Value = serde_json::from_str(&ready).unwrap();
    assert_eq!(ready["ready"], true);
    assert!(ready["warnings"][0].as_str().unwrap().contains("key.pem"), "{ready}");

    let third = put_certificate(&cert, &key);
    let mut stream = eventually(|| enter(&broker, &third));
    let ready: Value = serde_json::from_str(&ask(&mut stream, "/readyz")).unwrap();
    assert_eq!(ready["warnings"], serde_json::json!([]), "it is mended");
    let page = ask(&mut stream, "/metrics");
    assert!(page.contains("punctual_tls_certificates_total{result=\"used\"} 2"), "{page}");
    assert!(page.contains("punctual_tls_certificates_total{result=\"failed\"} 1"), "{page}");
}
