//! A connection whose server confirms no message: it answers everything but `XADD` of Redis.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::Context as _;
use punctual_proto::v1::{NewTask, RedisStreamTarget, Target, target};

use crate::clock::{millis, pause};
use crate::connection::task;
use crate::tenants::context::{LoadContext, NAMESPACE};

/// More than all sessions of a connection have in flight.
const MESSAGES: u64 = 20_000;
/// How long an attempt may take: longer than the row.
const TIMEOUT_MS: u64 = 300_000;
/// The connection in the configuration of the broker.
const CONNECTION: &str = "hanging";
/// The longest argument of a command that is read.
const ARGUMENT_BYTES_MAX: usize = 1 << 20;

/// The server, and the configuration that names it. The file is removed when this is dropped; the
/// threads of the server end with the process.
#[derive(Debug)]
pub(crate) struct HangingServer {
    pub(crate) config: PathBuf,
    pub(crate) messages: Arc<AtomicU64>,
}

impl HangingServer {
    pub(super) fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let config = std::env::temp_dir().join(format!("punctual-bench-{}.toml", address.port()));
        let text = format!(
            "[connections.{CONNECTION}]\nkind = \"redis\"\nurl = \"redis://{address}\"\n\
             namespaces = [\"{NAMESPACE}\"]\n"
        );
        std::fs::write(&config, text).context("cannot write the configuration of the broker")?;
        let messages = Arc::default();
        let count = Arc::clone(&messages);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let count = Arc::clone(&count);
                thread::spawn(move || serve(&stream, &count));
            }
        });
        Ok(Self { config, messages })
    }
}

impl Drop for HangingServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.config);
    }
}

/// Reads commands until the connection ends. Replies are in order, so there is none after `XADD`.
fn serve(stream: &TcpStream, messages: &AtomicU64) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut answers = true;
    loop {
        let arguments = read_number(&mut reader, '*')?;
        let mut name = Vec::new();
        for number in 0..arguments {
            let length = read_number(&mut reader, '$')?.min(ARGUMENT_BYTES_MAX);
            let mut argument = vec![0; length + 2];
            reader.read_exact(&mut argument)?;
            if number == 0 {
                argument.truncate(length);
                name = argument;
            }
        }
        if name.eq_ignore_ascii_case(b"XADD") {
            messages.fetch_add(1, Ordering::SeqCst);
            answers = false;
        }
        if answers {
            (&*stream).write_all(b"+OK\r\n")?;
        }
    }
}

/// Reads a line that begins with `sign`, and returns the number behind it.
fn read_number(reader: &mut BufReader<&TcpStream>, sign: char) -> io::Result<usize> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let number = line.strip_prefix(sign).and_then(|rest| rest.trim_end().parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let messages = context.servers.messages.clone().context("the row has no server of messages")?;
    context.schedule(MESSAGES, message).await?;
    let counts = context.clone();
    let counting = tokio::spawn(async move {
        loop {
            counts.add("messages that hang", messages.swap(0, Ordering::SeqCst));
            pause(50).await;
        }
    });
    context.wait_until_steady("messages that hang").await?;
    context.establish();
    counting.await?
}

/// A task that is due now, to a stream of the connection.
fn message(number: u64) -> NewTask {
    let stream = RedisStreamTarget {
        connection: CONNECTION.to_owned(),
        stream: format!("stream-{}", number % 100),
        ..RedisStreamTarget::default()
    };
    let target = Some(Target { to: Some(target::To::RedisStream(stream)) });
    NewTask { target, timeout_ms: TIMEOUT_MS, ..task(number, millis()) }
}
