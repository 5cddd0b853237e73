//! A slow name server, and brokers that use it.
//!
//! The server answers every question for an IPv4 address with 127.0.0.1, or with the addresses of
//! the test, after a delay. A broker uses it through a `resolv.conf` in its own mount namespace.
//! Needs root.

use std::io::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::wait::pause;

/// The longest question that is read. Names in tests are short.
const QUESTION_BYTES_MAX: usize = 512;
const TYPE_A: [u8; 2] = [0, 1];

pub struct SlowNameServer {
    delay_millis: Arc<AtomicU64>,
    addresses: Arc<Mutex<Vec<Ipv4Addr>>>,
    resolv_conf: NamedTempFile,
}

impl SlowNameServer {
    /// Starts a server on a loopback address of its own, where port 53 is free.
    pub fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = std::process::id().wrapping_mul(4).wrapping_add(next);
        let [_, _, high, low] = number.to_be_bytes();
        let address = Ipv4Addr::new(127, 53, high, low);
        let socket = Arc::new(UdpSocket::bind((address, 53)).expect("root may bind port 53"));
        let mut resolv_conf = NamedTempFile::new().unwrap();
        writeln!(resolv_conf, "nameserver {address}").unwrap();
        let delay_millis = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&delay_millis);
        let addresses = Arc::new(Mutex::new(vec![Ipv4Addr::LOCALHOST]));
        let answered = Arc::clone(&addresses);
        thread::spawn(move || {
            let mut question = [0; QUESTION_BYTES_MAX];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                let answer = answer(&question[..length], &answered.lock().unwrap());
                let socket = Arc::clone(&socket);
                let after = Duration::from_millis(delay.load(Ordering::SeqCst));
                thread::spawn(move || {
                    pause(after);
                    let _ = socket.send_to(&answer, from);
                });
            }
        });
        Self { delay_millis, addresses, resolv_conf }
    }

    /// Answers all later questions with these addresses. Without any, no name can be resolved.
    pub fn resolve_to(&self, addresses: &[Ipv4Addr]) {
        *self.addresses.lock().unwrap() = addresses.to_vec();
    }

    /// Delays all later answers.
    pub fn delay(&self, by: Duration) {
        self.delay_millis.store(u64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Returns a command that runs the rest of its words with this name server.
    pub fn command(&self) -> Command {
        let mut command = Command::new("unshare");
        let mount = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
        command.args(["--mount", "sh", "-c", mount]).arg(self.resolv_conf.path());
        command
    }
}

/// Answers a question for an IPv4 address with addresses, and others with nothing.
fn answer(question: &[u8], addresses: &[Ipv4Addr]) -> Vec<u8> {
    let name = question[12..].iter().position(|byte| *byte == 0).expect("a name ends in zero");
    let end = 12 + name + 5;
    let wants_ipv4 = question[end - 4..end - 2] == TYPE_A;
    let addresses = if wants_ipv4 { addresses } else { &[] };
    let count = u8::try_from(addresses.len()).expect("few addresses");
    let mut answer = question[..end].to_vec();
    // A response without an error, one question, and as many answers as there are addresses.
    answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, count, 0, 0, 0, 0]);
    for address in addresses {
        // The name of the question, class IN, a time to live of zero.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    answer
}
