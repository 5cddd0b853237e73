//! The mail server of a broker: its address, how the connection is encrypted, and the sender.
//!
//! A connection is encrypted, unless the server is on this machine. Credentials appear neither in
//! errors nor in debug output.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::Uri;
use lettre::message::Mailbox;
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::extension::ClientId;

use crate::tls::Authorities;

/// The mail server that notices are sent through.
#[derive(Clone)]
pub struct MailServer {
    url: MailServerUrl,
    /// `None` if the connection is not encrypted.
    tls: Option<TlsParameters>,
    from: Mailbox,
    credentials: Option<SmtpCredentials>,
}

/// The address of a mail server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MailServerUrl {
    host: String,
    port: u16,
    encryption: SmtpEncryption,
}

/// When a connection becomes encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SmtpEncryption {
    /// Never.
    Plain,
    /// After the command STARTTLS. A server without it is not used.
    StartTls,
    /// From the first byte on.
    Tls,
}

/// User and password.
#[derive(Clone)]
pub(crate) struct SmtpCredentials(Credentials);

/// Why a connection cannot be used.
#[derive(Debug)]
pub(super) enum ConnectError {
    Server(SmtpError),
    Credentials(SmtpError),
}

impl MailServerUrl {
    /// Parses `smtps://HOST[:PORT]` or `smtp://HOST[:PORT][?tls=required]`. The error does not
    /// repeat the text, which may have a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "must be smtps://HOST:PORT or smtp://HOST:PORT?tls=required";
        let uri: Uri = text.parse().map_err(|_| FORM.to_owned())?;
        let authority = uri.authority().filter(|it| !it.host().is_empty()).ok_or(FORM)?;
        if authority.as_str().contains('@') {
            return Err("must not have a user or password; use --smtp-credentials-file".to_owned());
        }
        let after_host = &authority.as_str()[authority.host().len()..];
        let port = authority.port_u16().filter(|port| *port > 0);
        if !matches!(uri.path(), "" | "/") || (!after_host.is_empty() && port.is_none()) {
            return Err(FORM.to_owned());
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let (encryption, usual_port) = match (uri.scheme_str(), uri.query()) {
            (Some("smtps"), None) => (SmtpEncryption::Tls, 465),
            (Some("smtp"), Some("tls=required")) => (SmtpEncryption::StartTls, 587),
            (Some("smtp"), None) if is_loopback(&host) => (SmtpEncryption::Plain, 25),
            (Some("smtp"), None) => {
                let problem = "the connection would not be encrypted, which is allowed on loopback \
                               only: use smtps://HOST:PORT or smtp://HOST:PORT?tls=required";
                return Err(problem.to_owned());
            }
            _ => return Err(FORM.to_owned()),
        };
        Ok(Self { host, port: port.unwrap_or(usual_port), encryption })
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.encryption != SmtpEncryption::Plain
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl SmtpCredentials {
    /// Parses `USER:PASSWORD` in one line. The error does not repeat the text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((user, password))
                if !user.is_empty() && !password.is_empty() && !text.contains(['\r', '\n']) =>
            {
                Ok(Self(Credentials::new(user.to_owned(), password.to_owned())))
            }
            _ => Err("the file must have USER:PASSWORD in one line".to_owned()),
        }
    }
}

impl fmt::Debug for SmtpCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SmtpCredentials")
    }
}

impl MailServer {
    /// Makes a server that trusts these certificate authorities and the public ones.
    pub(crate) fn new(
        url: MailServerUrl,
        from: Mailbox,
        credentials: Option<SmtpCredentials>,
        authorities: &Authorities,
    ) -> Result<Self, String> {
        let tls = url.is_encrypted().then(|| tls(&url.host, authorities)).transpose()?;
        Ok(Self { url, tls, from, credentials })
    }

    pub(super) const fn from(&self) -> &Mailbox {
        &self.from
    }

    /// Opens a connection on which a mail can be sent.
    pub(super) async fn connect(
        &self,
        timeout: Duration,
    ) -> Result<AsyncSmtpConnection, ConnectError> {
        // The server of this machine, or the credentials, say who sends.
        let client = ClientId::default();
        let address = (self.url.host.clone(), self.url.port);
        let at_once = self.tls.clone().filter(|_| self.url.encryption == SmtpEncryption::Tls);
        let connecting =
            AsyncSmtpConnection::connect_tokio1(address, Some(timeout), &client, at_once, None);
        let mut connection = connecting.await.map_err(ConnectError::Server)?;
        if let (SmtpEncryption::StartTls, Some(tls)) = (self.url.encryption, &self.tls) {
            connection.starttls(tls.clone(), &client).await.map_err(ConnectError::Server)?;
        }
        if let Some(SmtpCredentials(credentials)) = &self.credentials {
            let login = connection.auth(DEFAULT_MECHANISMS, credentials);
            login.await.map_err(ConnectError::Credentials)?;
        }
        Ok(connection)
    }
}

fn tls(host: &str, authorities: &Authorities) -> Result<TlsParameters, String> {
    let mut builder = TlsParameters::builder(host.to_owned());
    for authority in authorities.certificates() {
        let authority = Certificate::from_der(authority.to_vec());
        builder = builder.add_root_certificate(authority.map_err(|error| error.to_string())?);
    }
    builder.build().map_err(|error| error.to_string())
}

impl fmt::Debug for MailServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MailServer").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_to_another_machine_is_encrypted() {
        use SmtpEncryption::{Plain, StartTls, Tls};
        for (text, want) in [
            ("smtps://mail.example.org", Some(("mail.example.org", 465, Tls))),
            ("smtps://mail.example.org:2465/", Some(("mail.example.org", 2465, Tls))),
            ("smtp://mail.example.org?tls=required", Some(("mail.example.org", 587, StartTls))),
            ("smtp://mail.example.org:25/?tls=required", Some(("mail.example.org", 25, StartTls))),
            ("smtp://localhost", Some(("localhost", 25, Plain))),
            ("smtp://127.0.0.2:1025", Some(("127.0.0.2", 1025, Plain))),
            ("smtp://[::1]:1025", Some(("::1", 1025, Plain))),
            ("smtp://[::1]?tls=required", Some(("::1", 587, StartTls))),
            ("smtp://mail.example.org", None),
            ("smtp://192.0.2.1:25", None),
            ("smtp://localhost.example.org", None),
            ("smtp://mail.example.org?tls=none", None),
            ("smtps://mail.example.org?tls=required", None),
            ("smtps://user:hush@mail.example.org", None),
            ("smtps://mail.example.org/path", None),
            ("smtps://mail.example.org:0", None),
            ("smtps://mail.example.org:", None),
            ("http://mail.example.org", None),
            ("mail.example.org:465", None),
            ("smtps://", None),
            ("", None),
        ] {
            let want = want.map(|(host, port, encryption)| MailServerUrl {
                host: host.to_owned(),
                port,
                encryption,
            });
            let got = MailServerUrl::parse(text);
            assert_eq!(got.as_ref().ok(), want.as_ref(), "{text}: {got:?}");
        }
        let error = MailServerUrl::parse("smtps://user:hush@mail.example.org").unwrap_err();
        assert!(!error.contains("hush"), "{error}");
    }

    #[test]
    fn credentials_are_a_user_and_a_password_and_never_shown() {
        for (text, accepted) in [
            ("ops:hush", true),
            ("ops@example.org:hu:sh", true),
            ("ops", false),
            (":hush", false),
            ("ops:", false),
            ("ops:hush\nmore", false),
        ] {
            match SmtpCredentials::parse(text) {
                Ok(credentials) => {
                    assert!(accepted, "{text}");
                    assert_eq!(format!("{credentials:?}"), "SmtpCredentials");
                }
                Err(error) => assert!(!accepted && !error.contains("hush"), "{text}: {error}"),
            }
        }
    }
}
