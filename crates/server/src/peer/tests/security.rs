//! Callers without the secret, other versions and TLS.

use super::*;

#[tokio::test]
async fn a_caller_without_the_secret_is_refused_every_call() {
    let mut peer = TestPeer::start(Payload::Empty, None);
    peer.let_continue(9);
    let strangers = peers_with("of-another-cluster", Transport::Plain);
    let (broker, partition) = (&peer.broker, partition(0));
    let ns = shop();
    let refused = [
        strangers.forward(broker, partition, &[get("1")]).await.map(drop),
        strangers.take(broker, partition, Epoch::NONE, &[]).await.map(drop),
        strangers.report(broker, partition, &[report()]).await,
        strangers.gauges(broker, None).await.map(drop),
        strangers.poll(broker, &poll_options(1, Duration::ZERO, None)).await.map(drop),
        strangers.view(broker, &view_query(partition)).await.map(drop),
        strangers
            .settle(broker, SettleScope::of_namespace(&ns), &[(LeaseToken(1), Settlement::Ack)])
            .await
            .map(drop),
    ];
    let want = Err(PeerError::Refused("the secret of the cluster is required".to_owned()));
    for refused in refused {
        assert_eq!(refused, want);
    }
    assert!(peer.arrived.try_recv().is_err(), "no call arrived");

    // No secret, two secrets, and a message that is too large to be read.
    let mut raw = raw(broker).await;
    let forward = |commands: Vec<u8>| {
        Request::new(v1::ForwardRequest { partition: 0, commands: commands.into() })
    };
    let mut twice = forward(Vec::new());
    for secret in [SECRET, "of-another-cluster"] {
        twice.metadata_mut().append("authorization", Secret::new(secret).unwrap().header);
    }
    for request in [forward(Vec::new()), twice, forward(vec![0; MESSAGE_BYTES_MAX + 1])] {
        let status = raw.forward(request).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    }
}

async fn raw(broker: &BrokerId) -> PeersClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{broker}")).unwrap();
    PeersClient::new(endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn a_message_of_another_version_is_refused_before_anything_is_done() {
    let mut peer = TestPeer::start(Payload::Empty, None);
    let mut client = raw(&peer.broker).await;
    let message = v1::ForwardRequest { partition: 0, commands: vec![9, 0].into() };
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", Secret::new(SECRET).unwrap().header);
    let status = client.forward(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "the peer speaks version 9, this broker version 3");
    assert!(matches!(PeerError::of(&status), PeerError::Refused(_)));
    assert!(peer.arrived.try_recv().is_err());
}

#[tokio::test]
async fn peers_with_a_certificate_of_the_trusted_authority_are_called_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, generated.cert.pem()).unwrap();
    std::fs::write(&key, generated.signing_key.serialize_pem()).unwrap();
    let peer = TestPeer::start(Payload::Empty, Some(Tls::load(&cert, &key).unwrap()));
    let of = |authority| peers_with(SECRET, Transport::Tls { authority });
    let ours = of(Some(generated.cert.pem().into_bytes()));
    assert_eq!(ours.gauges(&peer.broker, None).await.unwrap().loaded, 2);
    // With another authority the call fails before the secret is sent.
    let error = of(None).gauges(&peer.broker, None).await.unwrap_err();
    assert_eq!(kind(&error), "unreachable", "{error}");
}

#[test]
fn a_secret_is_not_in_debug_output() {
    let secret = Secret::new(SECRET).unwrap();
    assert!(!format!("{secret:?}").contains(SECRET));
    assert!(Secret::new("").is_err());
    assert!(Secret::new("two words").is_err());
    let other = Secret::new("of-another-cluster").unwrap();
    assert!(secret.matches(&secret.header) && !secret.matches(&other.header));
}
