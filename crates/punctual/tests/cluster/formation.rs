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
fn the_first_broker_fixes_the_number_of_partitions_and_each_name_is_a_cluster() {
    let mut cluster = TestCluster::on_loopback(1, &["--partitions", "7"]);
    let second = cluster.add();
    cluster.flags.clear();
    cluster.launch_with(second, &["--partitions", "8"], &[]);
    let status = cluster.brokers[second].end();
    let log = cluster.brokers[second].logged();
    assert!(!status.success(), "{log}");
    let reason = "cluster \"punctual\" was created with 7 partitions, not 8";
    assert!(log.contains(reason), "{log}");
    // A broker without the flag takes the existing number.
    cluster.start_again(second);
    let owned = eventually(|| {
        let owned = cluster.owned(second)?;
        (owned.by_broker.get(&cluster.client(second).address)?.len() == 3).then_some(owned)
    });
    assert_eq!(owned.by_broker.values().map(BTreeSet::len).sum::<usize>(), 7, "{owned:?}");
    // Another name is another cluster on the same Redis.
    let other = cluster.add();
    cluster.launch_with(other, &["--cluster", "other", "--partitions", "3"], &[]);
    let owned = eventually(|| cluster.owned(other).filter(|owned| owned.leader.is_some()));
    assert_eq!(owned.by_broker.len(), 1, "{owned:?}");
    let idle = json!({"in": "1h", "target": {"queue": "idle"}});
    eventually(|| (cluster.client(other).put("a", &idle).0 == 201).then_some(()));
    assert_eq!(cluster.client(second).get("/tasks/a").0, 404);
}

#[test]
fn peers_need_the_secret_and_webhooks_to_redis_or_a_broker_are_refused() {
    let cluster = TestCluster::on_loopback(2, &[]);
    let address = cluster.client(0).address;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let gauge = |authorization: Option<&str>| {
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
        assert_eq!(gauge(wrong), Err(Code::Unauthenticated), "{wrong:?}");
    }
    let [first, second] = cluster.redis.ports();
    let ports = [first, second, cluster.client(0).address.port(), cluster.client(1).address.port()];
    for client in cluster.clients() {
        for port in ports {
            let (status, problem) =
                client.put("a", &due("1h", &format!("http://127.0.0.1:{port}/")));
            assert_eq!(status, 422, "{port}: {problem}");
            assert_eq!(problem["field"], "target.http.url", "{problem}");
        }
    }
}
