//! A broker with a virtual clock in this process, on any store: `punctual dev` runs on the memory
//! store only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use punctual_connectors::ConnectorConfig;
use punctual_core::{ANSWER_BYTES_DEFAULT, Namespace, Partitions, Timestamp};
use punctual_server::{
    ApiToken, Authorities, Config, Grant, MeteredStore, Rights, SigningSecret, Signs, run_virtual,
};
use punctual_store_any::{PartitionCount, StoreLocation};

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Connections of one scenario to its receivers.
const CONNECTIONS_MAX: usize = 64;

/// A broker in this process. It ends when this is dropped.
pub(super) struct VirtualBroker {
    pub(super) address: SocketAddr,
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<JoinHandle<()>>,
}

impl VirtualBroker {
    /// Starts a broker whose clock is frozen. `args` are flags of `punctual dev`.
    pub(super) fn start(store: StoreLocation, clock: &str, args: &[String]) -> Self {
        let runtime = Runtime::new().unwrap();
        let now = Timestamp::parse_rfc3339(clock).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (address, ended) = runtime.block_on(async {
            let count = PartitionCount::ExistingOr(Partitions::ONE);
            let opened = punctual_store_any::open(store, count).await.unwrap();
            let store = Arc::new(MeteredStore::new(opened.store));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let config = config(address, args);
            let ended = tokio::spawn(async move {
                let stop = async { _ = stopped.await };
                let partitions = opened.partitions;
                run_virtual(listener, config, store, partitions, Some(now), stop).await.unwrap();
            });
            (address, ended)
        });
        Self { address, runtime, stop: Some(stop), ended: Some(ended) }
    }
}

impl Drop for VirtualBroker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(ended) = self.ended.take() {
            // A panic of the broker has been printed; the scenario fails by itself.
            let _ = self.runtime.block_on(ended);
        }
    }
}

fn config(listen: SocketAddr, args: &[String]) -> Config {
    let (mut tokens, mut signing_secrets) = (Vec::new(), Vec::new());
    for pair in args.chunks(2) {
        let [flag, value] = pair else { panic!("{pair:?}: a flag and its value") };
        let (name, secret) = value.split_once('=').unwrap_or(("", value));
        let namespace = |name: &str| Namespace::new(name).unwrap();
        match flag.as_str() {
            "--token" => {
                let (name, rights) = match name.split_once(':') {
                    Some((name, rights)) => (name, Rights::parse(rights).unwrap()),
                    None => (name, Rights::ALL),
                };
                let grant = Grant::Namespace(namespace(name), rights);
                tokens.push(ApiToken::new(grant, secret).unwrap());
            }
            "--admin-token" => tokens.push(ApiToken::new(Grant::Admin, value).unwrap()),
            "--signing-secret" => {
                let signs = Signs::Namespace(namespace(name));
                signing_secrets.push(SigningSecret::new(signs, secret).unwrap());
            }
            other => panic!("the broker in this process does not know {other}"),
        }
    }
    Config {
        listen,
        insecure: false,
        tokens,
        signing_secrets,
        allow_private_targets: false,
        webhook_authorities: Authorities::default(),
        webhook_connections_max: CONNECTIONS_MAX,
        answer_bytes: ANSWER_BYTES_DEFAULT,
        mail_server: None,
        connectors: ConnectorConfig::default(),
        tls: None,
        retention: punctual_store::Retention::default(),
        grace: Duration::from_millis(100),
        sharing: None,
    }
}
