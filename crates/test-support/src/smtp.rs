//! A real mail server on loopback, which records the mails that it takes.
//!
//! It is `aiosmtpd` in a Python process. It can require TLS and a password, and refuse addresses.
//! The package is that of the system: `python3-aiosmtpd` belongs to `/usr/bin/python3`.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::wait::wait_for;

const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = include_str!("smtp.py");

/// How a mail server is reached.
#[derive(Debug, Clone, Copy, Default)]
pub struct SmtpOptions<'a> {
    /// Certificate and key, if the server encrypts.
    pub tls: Option<SmtpTls<'a>>,
    /// `USER:PASSWORD`, if the server wants them.
    pub credentials: Option<&'a str>,
}

/// How a mail server encrypts.
#[derive(Debug, Clone, Copy)]
pub struct SmtpTls<'a> {
    /// PEM file of the certificate.
    pub cert: &'a Path,
    /// PEM file of its key.
    pub key: &'a Path,
    /// Whether with the command STARTTLS, which it then requires, or from the first byte on.
    pub start: SmtpTlsStart,
}

/// When the connection to a mail server is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmtpTlsStart {
    /// From the first byte on.
    AtOnce,
    /// After STARTTLS.
    OnCommand,
}

/// A mail server in a process of its own, ended when it is dropped.
///
/// It refuses recipients that begin with `unknown@` for good (550) and those that begin with
/// `busy@` for now (450).
#[derive(Debug)]
pub struct SmtpServer {
    process: Child,
    dir: TempDir,
}

/// A mail that a server has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMail {
    /// The sender that was named to the server.
    pub sender: String,
    /// The recipients that were named to the server.
    pub recipients: Vec<String>,
    /// The user that has logged in; empty without.
    pub user: String,
    /// Headers and text, as they were sent.
    pub message: String,
}

impl SmtpServer {
    /// Starts a server and waits until it listens.
    #[must_use]
    pub fn start(port: u16, options: SmtpOptions<'_>) -> Self {
        let dir = TempDir::new().unwrap();
        let mut command = Command::new(PYTHON);
        command.arg("-c").arg(SCRIPT).arg(port.to_string()).arg(dir.path());
        if let Some(SmtpTls { cert, key, start }) = options.tls {
            let flag = match start {
                SmtpTlsStart::AtOnce => "--tls",
                SmtpTlsStart::OnCommand => "--starttls",
            };
            command.arg(flag).arg(cert).arg(key);
        }
        if let Some(credentials) = options.credentials {
            command.arg("--credentials").arg(credentials);
        }
        let process = command.stdin(Stdio::piped()).spawn().expect("python3 is needed");
        let ready = dir.path().join("ready");
        let server = Self { process, dir };
        wait_for("the mail server (package python3-aiosmtpd)", || ready.exists());
        server
    }

    /// Returns the mails that the server has taken so far, in their order.
    #[must_use]
    pub fn mails(&self) -> Vec<ReceivedMail> {
        let log = std::fs::read_to_string(self.dir.path().join("mails")).unwrap_or_default();
        log.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(ReceivedMail::read)
            .collect()
    }
}

impl ReceivedMail {
    fn read(line: &str) -> Self {
        let mail: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| mail[name].as_str().unwrap().to_owned();
        let recipients = mail["recipients"].as_array().unwrap();
        Self {
            sender: text("sender"),
            recipients: recipients.iter().map(|it| it.as_str().unwrap().to_owned()).collect(),
            user: text("user"),
            message: text("message"),
        }
    }

    /// Returns the value of a header in one line.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (head, _) = self.message.split_once("\r\n\r\n")?;
        head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Drop for SmtpServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
