//! A slow name server, and brokers that use it.
//!
//! The server answers every question for an IPv4 address with 127.0.0.1, after a delay; names under
//! `fast.test` are answered at once. A broker uses it through a `resolv.conf` in its own mount
//! namespace. Needs root. The benchmark of namespaces and the tests of a cluster share it.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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
        thread::spawn(move || {
            let mut question = [0; QUESTION_BYTES_MAX];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                let Some(reply) = answer(&question[..length]) else { continue };
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
        Ok(Self { delay_millis, delayed, resolv_conf })
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

/// Answers 127.0.0.1 to a question for an IPv4 address, and nothing to others.
/// Returns `None` if the question is not complete.
fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let name = question.get(12..)?.iter().position(|byte| *byte == 0)?;
    let end = 12 + name + 5;
    let mut answer = question.get(..end)?.to_vec();
    let wants_ipv4 = answer[end - 4..end - 2] == TYPE_A;
    // A response without an error, one question, one answer or none.
    answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(wants_ipv4), 0, 0, 0, 0]);
    if wants_ipv4 {
        // The name of the question, class IN, a time to live of zero.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}
