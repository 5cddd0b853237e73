//! What a cluster fixes when it is made, and what only its brokers may do.

use std::collections::BTreeSet;

use punctual_proto::v1;
use punctual_proto::v1::peers_client::PeersClient;
use punctual_test_support::{TestCluster, eventually};
use serde_json::json;
use tonic::Code;
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;

use crate::keys::due;

#[test]
fn name_and_number_of_partitions_are_fixed_when_the_cluster_is_made() {
    let mut cluster = TestCluster::on_loopback(1, &["--partitions", "7"]);
    let stranger = cluster.add();
    cluster.flags.clear();
    cluster.launch_with(stranger, &["--partitions", "8"], &[]);
    let status = cluster.brokers[stranger].end();
    let said = cluster.brokers[stranger].logged();
    assert!(!status.success(), "{said}");
    let why = "the cluster punctual was made with 7 partitions, not with 8";
    assert!(said.contains(why), "{said}");
    // One that says nothing takes what there is.
    cluster.start_again(stranger);
    let held = eventually(|| {
        let held = cluster.owned(stranger)?;
        (held.by_broker.get(&cluster.client(stranger).address)?.len() == 3).then_some(held)
    });
    assert_eq!(held.by_broker.values().map(BTreeSet::len).sum::<usize>(), 7, "{held:?}");
    // Another name is another cluster in the same Redis.
    let other = cluster.add();
    cluster.launch_with(other, &["--cluster", "other", "--partitions", "3"], &[]);
    let held = eventually(|| cluster.owned(other).filter(|held| held.leader.is_some()));
    assert_eq!(held.by_broker.len(), 1, "{held:?}");
    let nobody = json!({"in": "1h", "target": {"queue": "nobody"}});
    eventually(|| (cluster.client(other).put("a", &nobody).0 == 201).then_some(()));
    assert_eq!(cluster.client(stranger).get("/tasks/a").0, 404);
}

#[test]
fn nobody_without_the_secret_is_a_peer_and_no_webhook_goes_to_redis_or_a_broker() {
    let cluster = TestCluster::on_loopback(2, &[]);
    let address = cluster.client(0).address;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = |authorization: Option<&str>| {
        runtime.block_on(async {
            let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
            let mut peers = PeersClient::new(channel.connect().await.unwrap());
            let mut request = tonic::Request::new(v1::GaugeRequest { namespace: None });
            if let Some(text) = authorization {
                let value = MetadataValue::try_from(text).unwrap();
                request.metadata_mut().insert("authorization", value);
            }
            peers.gauge(request).await.map(|_| ()).map_err(|status| status.code())
        })
    };
    for wrong in [None, Some("Bearer wrong"), Some(""), Some("Bearer ")] {
        assert_eq!(ask(wrong), Err(Code::Unauthenticated), "{wrong:?}");
    }
    let [first, second] = cluster.redis.ports();
    let places =
        [first, second, cluster.client(0).address.port(), cluster.client(1).address.port()];
    for client in cluster.clients() {
        for port in places {
            let (status, problem) =
                client.put("a", &due("1h", &format!("http://127.0.0.1:{port}/")));
            assert_eq!(status, 422, "{port}: {problem}");
            assert_eq!(problem["field"], "target.http.url", "{problem}");
        }
    }
}
