//! A link to a server that a test cuts: a relay on loopback.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A relay to a port of loopback.
#[derive(Debug)]
pub(crate) struct TestLink {
    pub(crate) port: u16,
    is_cut: Arc<watch::Sender<bool>>,
}

impl TestLink {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let is_cut = Arc::new(watch::Sender::new(false));
        let sender = Arc::clone(&is_cut);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut cut = sender.subscribe();
                tokio::spawn(async move {
                    let relay = async {
                        if let Ok(mut far) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                            let _ = copy_bidirectional(&mut near, &mut far).await;
                        }
                    };
                    tokio::select! {
                        () = relay => {}
                        _ = cut.wait_for(|cut| *cut) => {}
                    }
                });
            }
        });
        Self { port: own, is_cut }
    }

    /// Closes all connections. New ones are closed at once until the link is there again.
    pub(crate) fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    pub(crate) fn restore(&self) {
        self.is_cut.send_replace(false);
    }
}
