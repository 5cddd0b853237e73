//! A connection to Redis: its protocol (RESP) as bytes on a socket.
//!
//! Commands are collected and written at once; replies are read in the order of the commands.
//! Sending costs as little as possible, because the bench shares the machine with the server.

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// Bytes that are read at once: the bodies of a batch of tasks.
const READ_BYTES: usize = 256 * 1024;

/// A connection that is kept open.
#[derive(Debug)]
pub struct RespConnection {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    line: Vec<u8>,
}

impl RespConnection {
    /// Connects to a server on this machine.
    ///
    /// # Errors
    /// If nothing listens on the port.
    pub async fn connect(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.context("cannot reach Redis")?;
        stream.set_nodelay(true)?;
        let stream = BufReader::with_capacity(READ_BYTES, stream);
        Ok(Self { stream, out: Vec::new(), line: Vec::new() })
    }

    /// Begins a command of this many words, which follow.
    pub fn command(&mut self, words: usize) -> &mut Self {
        self.length(b'*', words);
        self
    }

    /// Adds a word to the command.
    pub fn word(&mut self, word: &[u8]) -> &mut Self {
        self.length(b'$', word.len());
        self.out.extend_from_slice(word);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    fn length(&mut self, kind: u8, length: usize) {
        self.out.push(kind);
        self.out.extend_from_slice(length.to_string().as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes the commands that were collected.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn send(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }

    /// Reads a reply that is a number.
    ///
    /// # Errors
    /// If it is not a number, or the connection is broken.
    pub async fn number(&mut self) -> anyhow::Result<u64> {
        let (kind, number) = self.head().await?;
        ensure!(kind == b':', "Redis replied {}", String::from_utf8_lossy(&self.line));
        u64::try_from(number).context("a negative number")
    }

    /// Reads a reply that is a list of texts, at any depth. A text that is missing is empty.
    pub(crate) async fn texts(&mut self) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut texts = Vec::new();
        let mut left = 1;
        while left > 0 {
            left -= 1;
            let (kind, length) = self.head().await?;
            let length = usize::try_from(length.max(0))?;
            match kind {
                b'*' => left += length,
                b'$' => texts.push(self.text(length).await?),
                _ => bail!("Redis replied {}", String::from_utf8_lossy(&self.line)),
            }
        }
        Ok(texts)
    }

    async fn text(&mut self, length: usize) -> anyhow::Result<Vec<u8>> {
        let mut text = vec![0; length + 2];
        self.stream.read_exact(&mut text).await?;
        text.truncate(length);
        Ok(text)
    }

    /// Reads the first line of a reply: its kind and its number.
    async fn head(&mut self) -> anyhow::Result<(u8, i64)> {
        self.line.clear();
        let read = self.stream.read_until(b'\n', &mut self.line).await?;
        ensure!(read > 0, "Redis closed the connection");
        let (kind, rest) = self.line.split_first().context("an empty reply")?;
        let number = std::str::from_utf8(rest).ok().and_then(|rest| rest.trim_end().parse().ok());
        match number {
            Some(number) => Ok((*kind, number)),
            None => bail!("Redis replied {}", String::from_utf8_lossy(&self.line).trim_end()),
        }
    }
}
