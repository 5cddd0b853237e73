//! Real Mosquitto servers on free ports, and `mosquitto_sub` as the witness of what they passed on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::certificate::make_certificate;
use crate::ports::free_port;
use crate::server_process::ServerProcess;
use crate::wait::{WAIT_MAX, wait_for};

/// Bytes of the largest packet that a server takes.
pub const PACKET_BYTES_MAX: usize = 200_000;
/// Who needs a password: on the port with TLS.
pub const ACCOUNT: &str = "punctual";
/// The password of [`ACCOUNT`].
pub const PASSWORD: &str = "hush-hush";
/// The topic of the messages that show that a subscription is there.
const READY: &str = "open/ready";
/// All clients may use the topics that begin with `open/` and `devices/`, and read those that begin
/// with `closed/`. Lines with `topic` are looked up when a client connects: a session that the
/// server has read from disk has none until then, and Mosquitto 2.0.11 drops each message for it,
/// though it confirms the message to the publisher.
const ACCESS: &str =
    "pattern readwrite open/#\npattern readwrite devices/#\npattern read closed/#\n";

/// A Mosquitto server, running or not.
pub struct MosquittoServer {
    pub port: u16,
    pub tls_port: u16,
    dir: TempDir,
    process: Option<ServerProcess>,
}

impl MosquittoServer {
    /// Starts a server on free ports of loopback, without TLS and passwords and with both.
    pub fn start() -> Self {
        Self::start_with("persistence false\n")
    }

    /// Starts a server that writes sessions and messages to disk when it stops. Written with each
    /// change, a backlog would cost its size again with each message.
    pub fn start_durable() -> Self {
        Self::start_with("persistence true\n")
    }

    fn start_with(settings: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (certificate, key) = make_certificate();
        let (port, tls_port) = (free_port(), free_port());
        let shown = dir.path().display();
        let config = format!(
            "per_listener_settings true\n{settings}persistence_location {shown}/\n\
             max_packet_size {PACKET_BYTES_MAX}\n\
             max_queued_messages 0\nmax_inflight_messages 0\nuser root\n\
             listener {port} 127.0.0.1\nallow_anonymous true\nacl_file {shown}/access\n\
             listener {tls_port} 127.0.0.1\nallow_anonymous false\nacl_file {shown}/access\n\
             password_file {shown}/passwords\ncertfile {shown}/server.crt\n\
             keyfile {shown}/server.key\n"
        );
        for (name, text) in [
            ("server.crt", &*certificate),
            ("server.key", &*key),
            ("access", ACCESS),
            ("mosquitto.conf", &*config),
        ] {
            fs::write(dir.path().join(name), text).expect("write the file");
        }
        let made = Command::new("mosquitto_passwd")
            .args(["-c", "-b", &format!("{shown}/passwords"), ACCOUNT, PASSWORD])
            .output()
            .expect("package mosquitto is needed");
        assert!(made.status.success(), "{made:?}");
        let mut server = Self { port, tls_port, dir, process: None };
        server.start_again();
        server
    }

    /// Starts the server again, with the same ports. Unless it is durable, it has forgotten
    /// everything.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "the server runs");
        let config = self.dir.path().join("mosquitto.conf").display().to_string();
        let words = ["mosquitto", "-c", &config].map(str::to_owned);
        self.process = Some(ServerProcess::start(self.dir.path(), &words));
        let port = self.port;
        wait_for("Mosquitto to answer", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }

    /// Stops the server as an operator does. A durable one writes what it has.
    pub fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.signal_all("-TERM");
            let port = self.port;
            wait_for("Mosquitto to end", || {
                std::net::TcpStream::connect(("127.0.0.1", port)).is_err()
            });
            process.kill();
        }
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops the server with SIGSTOP, until `resume`.
    pub fn suspend(&self) {
        self.process.as_ref().expect("the server runs").signal_all("-STOP");
    }

    pub fn resume(&self) {
        self.process.as_ref().expect("the server runs").signal_all("-CONT");
    }

    /// The file with the certificate authority that signed the server's certificate.
    pub fn authority_file(&self) -> PathBuf {
        self.dir.path().join("server.crt")
    }

    /// Subscribes to a topic filter, and waits until the server has answered.
    pub fn subscribe(&self, filter: &str) -> MqttWitness {
        let port = self.port.to_string();
        let mut process = Command::new("stdbuf")
            .args(["-oL", "mosquitto_sub", "-V", "5", "-q", "2", "-h", "127.0.0.1", "-p", &port])
            // A message of the second topic says that the subscription is there.
            .args(["-t", filter, "-t", READY, "-F", "%j"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("package mosquitto-clients is needed");
        let printed = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, messages) = channel();
        thread::spawn(move || {
            for line in printed.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).expect("a message in JSON"));
            }
        });
        let mut witness = MqttWitness { process, messages, early: Vec::new() };
        wait_for("a subscription", || {
            let words = ["-h", "127.0.0.1", "-p", &port, "-t", READY, "-m", "ready"];
            let sent = Command::new("mosquitto_pub").args(words).status();
            assert!(sent.expect("package mosquitto-clients is needed").success());
            witness.is_ready_within(Duration::from_millis(100))
        });
        witness
    }
}

/// A subscription in a process of its own, ended when it is dropped.
pub struct MqttWitness {
    process: Child,
    messages: Receiver<Value>,
    /// Messages of the filter that came before the subscription was known to be there: retained
    /// ones.
    early: Vec<Value>,
}

impl MqttWitness {
    fn is_ready_within(&mut self, patience: Duration) -> bool {
        while let Ok(message) = self.messages.recv_timeout(patience) {
            if message["topic"] == READY {
                return true;
            }
            self.early.push(message);
        }
        false
    }

    /// Returns the messages that have arrived since the last call.
    pub fn arrived(&mut self) -> Vec<Value> {
        let new = self.messages.try_iter().filter(|message| message["topic"] != READY);
        self.early.drain(..).chain(new).collect()
    }

    /// Returns the next message.
    pub fn next_message(&mut self) -> Value {
        if !self.early.is_empty() {
            return self.early.remove(0);
        }
        loop {
            let message = self.messages.recv_timeout(WAIT_MAX).expect("a message arrives");
            if message["topic"] != READY {
                return message;
            }
        }
    }
}

impl Drop for MqttWitness {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
