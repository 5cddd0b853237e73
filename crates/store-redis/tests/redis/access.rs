//! Access to Redis: TLS with a private authority, and a user with only the rights that the store
//! needs.

use punctual_core::PartitionId;
use punctual_store::conformance::fixtures::shop;
use punctual_store::{FireFilter, TaskStore};
use punctual_store_redis::{RedisOpenError, RedisStore};
use punctual_test_support::ports::free_port;
use punctual_test_support::redis::RedisServer;

use crate::writer::{TestWriter, options};

/// The rights of a broker as in the documentation; `NAME` is the name of the cluster.
const RIGHTS: &str = "on >secret ~{NAME}:* ~{NAME.* +@read +@write +eval +evalsha +info \
                      +config|get +role +wait +time +ping +cluster +asking";

/// Starts a server that speaks TLS. Returns it and the certificate of its authority.
fn start_secure() -> (RedisServer, Vec<u8>) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).expect("valid names");
    let certificate = certificate.self_signed(&key).expect("a certificate");
    let dir = tempfile::tempdir().expect("a temporary directory").keep();
    let [key_file, certificate_file] = ["key.pem", "certificate.pem"].map(|name| dir.join(name));
    std::fs::write(&key_file, key.serialize_pem()).expect("write the file");
    std::fs::write(&certificate_file, certificate.pem()).expect("write the file");
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
async fn the_store_works_over_tls_with_only_the_documented_rights() {
    let (server, authority) = start_secure();
    let url = format!("rediss://broker:secret@127.0.0.1:{}", server.tls_port);
    let mut settings = options(vec![url]);
    settings.authority_pem = Some(authority);
    let rights = RIGHTS.replace("NAME", &settings.cluster);
    let words: Vec<&str> =
        ["ACL", "SETUSER", "broker"].into_iter().chain(rights.split(' ')).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    assert_eq!(server.cli(&words).trim(), "OK");
    let mut writer = TestWriter::open(settings.clone(), PartitionId::FIRST).await;
    writer.put(3).await;
    writer.settle(1).await;
    writer.assert_whole().await;
    for key_prefix in ["", "order-"] {
        let filter = FireFilter { key_prefix: key_prefix.to_owned(), ..FireFilter::all(shop()) };
        let fires = writer.store.fires(PartitionId::FIRST, &filter, None, 9).await;
        assert_eq!(fires.expect("the rights are enough").items.len(), 1);
    }

    let mut other = settings.clone();
    other.cluster = "others".to_owned();
    let refused = RedisStore::open(other).await;
    assert!(
        matches!(refused, Err(RedisOpenError::Store(_))),
        "keys of another cluster are forbidden: {refused:?}"
    );
    let mut untrusted = settings.clone();
    untrusted.authority_pem = None;
    let refused = RedisStore::open(untrusted).await;
    assert!(
        matches!(refused, Err(RedisOpenError::Store(_))),
        "the authority is not trusted: {refused:?}"
    );
    let mut wrong_password = settings;
    wrong_password.urls = vec![format!("rediss://broker:wrong@127.0.0.1:{}", server.tls_port)];
    let refused = RedisStore::open(wrong_password).await;
    assert!(matches!(refused, Err(RedisOpenError::Store(_))), "the password is wrong: {refused:?}");
}
