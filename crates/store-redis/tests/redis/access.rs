//! TLS with a private authority, and a user who may do what the store does and nothing else.

use crate::writer::{TestWriter, options};
use punctual_core::PartitionId;
use punctual_store_redis::{OpenError, RedisStore};
use punctual_test_support::ports::free_port;
use punctual_test_support::redis::RedisServer;

/// The rights of a broker, as the documentation gives them; `NAME` is the cluster's.
const RIGHTS: &str = "on >secret ~{NAME}:* ~{NAME.* +@read +@write +eval +evalsha +info +config|get \
                      +role +wait +time +ping +cluster +asking";

/// A server whose only port speaks TLS, and its authority.
fn start_secure() -> (RedisServer, Vec<u8>) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).expect("valid names");
    let certificate = certificate.self_signed(&key).expect("a certificate");
    let dir = tempfile::tempdir().expect("a temporary directory").keep();
    let [key_file, certificate_file] = ["key.pem", "certificate.pem"].map(|name| dir.join(name));
    std::fs::write(&key_file, key.serialize_pem()).expect("a file can be written");
    std::fs::write(&certificate_file, certificate.pem()).expect("a file can be written");
    let [key_file, certificate_file] =
        [key_file, certificate_file].map(|f| f.display().to_string());
    let tls_port = free_port().to_string();
    let mut server = RedisServer::start(&[
        "--tls-port",
        &tls_port,
        "--tls-cert-file",
        &certificate_file,
        "--tls-key-file",
        &key_file,
        "--tls-auth-clients",
        "no",
    ]);
    server.tls_port = tls_port.parse().expect("a port");
    server.extra_dir = Some(dir);
    (server, certificate.pem().into_bytes())
}

#[tokio::test]
async fn a_user_with_few_rights_over_tls_is_enough() {
    let (server, authority) = start_secure();
    let url = format!("rediss://broker:secret@127.0.0.1:{}", server.tls_port);
    let mut asked = options(vec![url]);
    asked.authority_pem = Some(authority);
    let rights = RIGHTS.replace("NAME", &asked.cluster);
    let words: Vec<&str> =
        ["ACL", "SETUSER", "broker"].into_iter().chain(rights.split(' ')).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    assert_eq!(server.cli(&words).trim(), "OK");
    let mut writer = TestWriter::open(asked.clone(), PartitionId::FIRST).await;
    writer.put(3).await;
    writer.settle(1).await;
    writer.assert_whole().await;

    let mut stranger = asked.clone();
    stranger.cluster = "others".to_owned();
    let refused = RedisStore::open(stranger).await;
    assert!(
        matches!(refused, Err(OpenError::Store(_))),
        "other names are not its own: {refused:?}"
    );
    let mut unknown = asked.clone();
    unknown.authority_pem = None;
    let refused = RedisStore::open(unknown).await;
    assert!(matches!(refused, Err(OpenError::Store(_))), "nobody vouches for it: {refused:?}");
    let mut guest = asked;
    guest.urls = vec![format!("rediss://broker:wrong@127.0.0.1:{}", server.tls_port)];
    let refused = RedisStore::open(guest).await;
    assert!(matches!(refused, Err(OpenError::Store(_))), "the password is wrong: {refused:?}");
}
