//! A slow name server, and brokers that use it.
//!
//! The server answers every question for an IPv4 address with 127.0.0.1, or with the addresses of a
//! test, after a delay; names under `fast.test` are answered at once. A broker uses it through a
//! `resolv.conf` in its own mount namespace. Needs root. The benchmark of namespaces and the tests
//! of a cluster share it.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A name that is answered at once.
pub(crate) const FAST_HOST: &str = "receiver.fast.test";
/// The domain of such names in a question: each label after its length.
const FAST_ENCODED: &[u8] = b"\x04fast\x04test";
/// The longest question that is read. Names in tests are short.
const QUESTION_BYTES_MAX: usize = 512;
/// Answers that wait for their delay, each in a thread. Further questions get none.
const ANSWERS_MAX: usize = 1024;
const TYPE_A: [u8; 2] = [0, 1];

/// A name server, until dropped.
#[derive(Debug)]
pub struct SlowNameServer {
    delay_millis: Arc<AtomicU64>,
    delayed: Arc<AtomicU64>,
    addresses: Arc<Mutex<Vec<Ipv4Addr>>>,
    resolv_conf: PathBuf,
}

impl SlowNameServer {
    /// Starts a server on a loopback address of its own, where port 53 is free.
    ///
    /// # Errors
    ///
    /// The process may not bind port 53, or cannot write a file.
    pub fn start() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = std::process::id().wrapping_mul(4).wrapping_add(next);
        let [_, _, high, low] = number.to_be_bytes();
        let address = Ipv4Addr::new(127, 53, high, low);
        let socket = Arc::new(UdpSocket::bind((address, 53))?);
        let resolv_conf = std::env::temp_dir().join(format!("punctual-resolv-{address}"));
        std::fs::write(&resolv_conf, format!("nameserver {address}\n"))?;
        let (delay_millis, delayed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (delay, count) = (Arc::clone(&delay_millis), Arc::clone(&delayed));
        let addresses = Arc::new(Mutex::new(vec![Ipv4Addr::LOCALHOST]));
        let answered = Arc::clone(&addresses);
        thread::spawn(move || {
            let mut question = [0; QUESTION_BYTES_MAX];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                let reply = {
                    let addresses = answered.lock().unwrap_or_else(PoisonError::into_inner);
                    answer(&question[..length], &addresses)
                };
                let Some(reply) = reply else { continue };
                let after = Duration::from_millis(delay.load(Ordering::SeqCst));
                if after.is_zero() || is_fast(&question[..length]) {
                    let _ = socket.send_to(&reply, from);
                } else if Arc::strong_count(&socket) <= ANSWERS_MAX {
                    count.fetch_add(1, Ordering::SeqCst);
                    let socket = Arc::clone(&socket);
                    thread::spawn(move || {
                        pause(after);
                        let _ = socket.send_to(&reply, from);
                    });
                }
            }
        });
        Ok(Self { delay_millis, delayed, addresses, resolv_conf })
    }

    /// Answers all later questions with these addresses. Without any, no name can be resolved.
    pub fn resolve_to(&self, addresses: &[Ipv4Addr]) {
        let mut answered = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        *answered = addresses.to_vec();
    }

    /// Delays all later answers, except for names under `fast.test`.
    pub fn delay(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.delay_millis.store(millis, Ordering::SeqCst);
    }

    /// Counts the questions whose answers were delayed.
    pub(crate) fn delayed(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.delayed)
    }

    /// Returns a command that runs the rest of its words with this name server.
    pub fn command(&self) -> Command {
        let mut command = Command::new("unshare");
        let mount = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
        command.args(["--mount", "sh", "-c", mount]).arg(&self.resolv_conf);
        command
    }
}

impl Drop for SlowNameServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.resolv_conf);
    }
}

/// Lets real time pass.
#[expect(clippy::disallowed_methods, reason = "the delay is what the server is for")]
fn pause(time: Duration) {
    thread::sleep(time);
}

/// Whether a question is about a name under `fast.test`.
fn is_fast(question: &[u8]) -> bool {
    question.windows(FAST_ENCODED.len()).any(|part| part == FAST_ENCODED)
}

/// Answers a question for an IPv4 address with addresses, and others with nothing. Returns `None`
/// if the question is not complete.
fn answer(question: &[u8], addresses: &[Ipv4Addr]) -> Option<Vec<u8>> {
    let name = question.get(12..)?.iter().position(|byte| *byte == 0)?;
    let end = 12 + name + 5;
    let mut answer = question.get(..end)?.to_vec();
    let wants_ipv4 = answer[end - 4..end - 2] == TYPE_A;
    let addresses = if wants_ipv4 { addresses } else { &[] };
    let count = u8::try_from(addresses.len()).ok()?;
    // A response without an error, one question, and as many answers as there are addresses.
    answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, count, 0, 0, 0, 0]);
    for address in addresses {
        // The name of the question, class IN, a time to live of zero.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
