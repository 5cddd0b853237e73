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
fn the_port_of_a_broker_with_a_certificate_speaks_only_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let flags = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let broker = TestBroker::start(&flags);
    let der = CertificateDer::from(made.cert.der().to_vec());
    assert_eq!(chosen_protocol(&broker, &der, &[b"h2", b"http/1.1"]), Some(b"h2".to_vec()));
    let answer = get_over_tls(&broker, &der);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("alive\n"), "{answer}");
    // A client without TLS gets no HTTP answer.
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

/// Returns the protocol that the broker chooses of those offered.
fn chosen_protocol(
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

/// An authority that signs certificates, and the file with its own certificate.
struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
    _dir: TempDir,
}

impl TestAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("authority.pem");
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), file, _dir: dir }
    }

    /// Returns a certificate for a name, and its key.
    fn sign(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn flags(&self) -> [&str; 2] {
        ["--webhook-ca", self.file.to_str().unwrap()]
    }
}

/// Starts a receiver that speaks TLS. Returns its URL with the name `localhost`, and the requests
/// that it gets.
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
                // A client that does not trust the certificate closes the connection.
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

/// Schedules a task with a single attempt. Returns the attempt from the history.
fn attempt_at(broker: &TestBroker, url: &str, timeout: &str) -> Value {
    let fields = format!(r#""in": "0s", "timeout": "{timeout}", "retry": {{"attempts_max": 1}}"#);
    let (status, made) = broker.call("POST", "/v1/shop/tasks", &[], task(&fields, url));
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
    let authority = TestAuthority::new();
    let broker = TestBroker::start(&authority.flags());
    let (url, got) = receiver(authority.sign("localhost"));
    assert_eq!(attempt_at(&broker, &url, "10s")["outcome"], "acked");
    let request = got.recv_timeout(WAIT_MAX).unwrap();
    assert!(request.starts_with("POST / HTTP/1.1\r\n"), "{request}");
    assert!(request.ends_with(r#"{"order": 1}"#), "{request}");
}

#[test]
fn a_receiver_without_a_valid_certificate_gets_nothing_and_the_history_has_the_reason() {
    let (authority, unknown) = (TestAuthority::new(), TestAuthority::new());
    let broker = TestBroker::start(&authority.flags());
    for (certificate, reason) in [
        (unknown.sign("localhost"), "--webhook-ca"),
        (authority.sign("elsewhere.example"), "not valid for name \"localhost\""),
    ] {
        let (url, got) = receiver(certificate);
        let attempt = attempt_at(&broker, &url, "10s");
        assert_eq!(attempt["outcome"], "failed");
        assert!(attempt["reason"].as_str().unwrap().contains(reason), "{attempt}");
        assert!(got.try_recv().is_err(), "nothing was sent");
    }
    // Without the flag the authority is unknown.
    let broker = TestBroker::start(&[]);
    let (url, _got) = receiver(authority.sign("localhost"));
    let attempt = attempt_at(&broker, &url, "10s");
    assert!(attempt["reason"].as_str().unwrap().contains("--webhook-ca"), "{attempt}");
}

#[test]
fn a_tls_handshake_that_never_ends_takes_no_longer_than_the_timeout_of_the_attempt() {
    let broker = TestBroker::start(&[]);
    // The kernel accepts connections, and nothing ever answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", silent.local_addr().unwrap().port());
    let begun = now_millis();
    assert_eq!(attempt_at(&broker, &url, "300ms")["outcome"], "expired");
    assert!(now_millis() - begun >= 300);
}

#[test]
fn an_unreadable_authority_prevents_the_start_whatever_setting_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("punctual.toml");
    std::fs::write(&file, "webhook_ca = \"/from/file\"\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    for (error, path) in [
        (refused_start(&["--webhook-ca", "/from/flag"], &[]), "/from/flag"),
        (refused_start(&[], &[("PUNCTUAL_WEBHOOK_CA", "/from/environment")]), "/from/environment"),
        (refused_start(&config, &[]), "/from/file"),
    ] {
        assert!(error.contains("webhook_ca") && error.contains(path), "{error}");
    }
}

type TlsStream = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

/// Writes a self-signed certificate and its key to files. Returns the certificate to trust.
fn put_certificate(cert: &Path, key: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(cert, made.cert.pem()).unwrap();
    std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

/// Connects to the broker, if it shows this certificate.
fn connect(broker: &TestBroker, trusted: &CertificateDer<'static>) -> Option<TlsStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TlsStream::new(client, TcpStream::connect(broker.address).unwrap());
    stream.conn.complete_io(&mut stream.sock).ok()?;
    Some(stream)
}

/// Sends a request on a connection that stays open. Returns the body of the answer.
fn request(stream: &mut TlsStream, path: &str) -> String {
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
fn new_connections_get_a_renewed_certificate_but_not_a_broken_one() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let first = put_certificate(&cert, &key);
    let flags = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let broker = TestBroker::start(&flags);
    let mut old = connect(&broker, &first).unwrap();
    assert_eq!(request(&mut old, "/livez"), "alive\n");

    let second = put_certificate(&cert, &key);
    let mut new = eventually(|| connect(&broker, &second));
    assert_eq!(request(&mut new, "/livez"), "alive\n");
    assert!(connect(&broker, &first).is_none(), "the old certificate is shown no more");
    assert_eq!(request(&mut old, "/livez"), "alive\n", "open connections stay open");

    // A key that belongs to another certificate.
    put_certificate(&dir.path().join("other.pem"), &key);
    let ready = eventually(|| {
        let mut stream = connect(&broker, &second).expect("the valid certificate is kept");
        Some(request(&mut stream, "/readyz")).filter(|ready| ready.contains("tls:"))
    });
    let ready: Value = serde_json::from_str(&ready).unwrap();
    assert_eq!(ready["ready"], true);
    assert!(ready["warnings"][0].as_str().unwrap().contains("key.pem"), "{ready}");

    let third = put_certificate(&cert, &key);
    let mut stream = eventually(|| connect(&broker, &third));
    let ready: Value = serde_json::from_str(&request(&mut stream, "/readyz")).unwrap();
    assert_eq!(ready["warnings"], serde_json::json!([]), "the warning is gone");
    let page = request(&mut stream, "/metrics");
    assert!(page.contains("punctual_tls_certificates_total{result=\"used\"} 2"), "{page}");
    assert!(page.contains("punctual_tls_certificates_total{result=\"failed\"} 1"), "{page}");
}
