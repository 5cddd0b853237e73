//! Options of a connection, and the URL that they are read from.
//!
//! `postgres://USER[:PASSWORD]@HOST[:PORT][,HOST[:PORT]…]/DATABASE[?sslmode=MODE]`, the same with
//! `mysql://`. A password that begins with `@` names a file that holds it; the text of the URL
//! itself may be `@FILE` as well. Of several hosts the first one that accepts writes is used.

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::error::SqlError;
use crate::secret::SqlSecret;

/// Of how many hosts a URL can consist: each costs a connect timeout if it does not answer.
const HOSTS_MAX: usize = 8;
/// The largest file that holds a URL or a password.
const SECRET_BYTES_MAX: u64 = 4096;

/// Which protocol a database speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlKind {
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    Mysql,
}

impl SqlKind {
    const fn port(self) -> u16 {
        match self {
            Self::Postgres => 5432,
            Self::Mysql => 3306,
        }
    }
}

/// A server of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlHost {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for SqlHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// How to reach a database.
#[derive(Debug, Clone)]
pub struct SqlOptions {
    /// Which protocol it speaks.
    pub kind: SqlKind,
    /// The servers to try, in this order.
    pub hosts: Vec<SqlHost>,
    /// Who connects.
    pub user: String,
    /// The password of the user.
    pub password: Option<SqlSecret>,
    /// The name of the database.
    pub database: String,
    /// Whether TLS is used. The server's certificate is always checked.
    pub tls: bool,
    /// Certificates of a private authority in PEM; without them the public authorities are
    /// trusted.
    pub authority_pem: Option<Vec<u8>>,
    /// How long connecting to one server may take.
    pub connect_timeout: Duration,
    /// How long a statement may take, at the server and for the caller.
    pub statement_timeout: Duration,
    /// The name that the server shows for the connection.
    pub application: String,
}

impl SqlOptions {
    /// The default of [`SqlOptions::connect_timeout`].
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
    /// The default of [`SqlOptions::statement_timeout`].
    pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

    /// Reads options from a URL, or from a file that holds one (`@FILE`). A file that the URL names
    /// is read now.
    pub fn from_url(url: &str) -> Result<Self, SqlError> {
        match url.strip_prefix('@') {
            Some(path) => parse(&read_secret(path)?),
            None => parse(url),
        }
    }

    /// Trusts the authorities in `pem` for TLS, which is then required.
    #[must_use]
    pub fn with_authority(mut self, pem: Vec<u8>) -> Self {
        self.tls = true;
        self.authority_pem = Some(pem);
        self
    }

    /// Returns where the database is, without secrets.
    #[must_use]
    pub fn shown(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(SqlHost::to_string).collect();
        format!("{}/{}", hosts.join(","), self.database)
    }
}

fn invalid(why: &str) -> SqlError {
    SqlError::Options(format!("invalid database URL: {why}"))
}

fn parse(url: &str) -> Result<SqlOptions, SqlError> {
    const SCHEMES: &str = "it must begin with postgres:// or mysql://";
    let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(SCHEMES))?;
    let kind = match scheme {
        "postgres" | "postgresql" => SqlKind::Postgres,
        "mysql" | "mariadb" => SqlKind::Mysql,
        _ => return Err(invalid(SCHEMES)),
    };
    // A question mark before the last `@` belongs to the password.
    let (credentials, place) = match rest.rsplit_once('@') {
        Some((credentials, place)) => (Some(credentials), place),
        None => (None, rest),
    };
    let credentials = credentials.ok_or_else(|| invalid("a user is missing: USER@HOST"))?;
    let (user, password) = match credentials.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (credentials, None),
    };
    let user = decode(user, "user")?;
    if user.is_empty() {
        return Err(invalid("a user is missing: USER@HOST"));
    }
    let password = match password {
        None | Some("") => None,
        Some(password) => Some(SqlSecret::new(match password.strip_prefix('@') {
            Some(path) => read_secret(path)?,
            None => decode(password, "password")?,
        })),
    };
    let (place, query) = place.split_once('?').unwrap_or((place, ""));
    let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
    let database = decode(database, "database")?;
    if database.is_empty() || database.contains('/') {
        return Err(invalid("a database is missing: HOST/DATABASE"));
    }
    Ok(SqlOptions {
        kind,
        hosts: parse_hosts(hosts, kind.port())?,
        user,
        password,
        database,
        tls: parse_tls(query)?,
        authority_pem: None,
        connect_timeout: SqlOptions::CONNECT_TIMEOUT,
        statement_timeout: SqlOptions::STATEMENT_TIMEOUT,
        application: "punctual".to_owned(),
    })
}

fn parse_hosts(text: &str, port: u16) -> Result<Vec<SqlHost>, SqlError> {
    let hosts: Vec<SqlHost> =
        text.split(',').map(|host| parse_host(host, port)).collect::<Result<_, _>>()?;
    if hosts.len() > HOSTS_MAX {
        return Err(invalid(&format!("at most {HOSTS_MAX} hosts are allowed")));
    }
    Ok(hosts)
}

fn parse_host(text: &str, default: u16) -> Result<SqlHost, SqlError> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, port)) => (address, Some(port.strip_prefix(':').unwrap_or(port))),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None => default,
        Some(port) => port.parse().map_err(|_| invalid(&format!("{port:?} is not a port")))?,
    };
    if host.is_empty() {
        return Err(invalid("a host is missing: USER@HOST/DATABASE"));
    }
    Ok(SqlHost { host: host.to_owned(), port })
}

fn parse_tls(query: &str) -> Result<bool, SqlError> {
    let mut tls = false;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        tls = match pair.split_once('=') {
            Some(("sslmode", "disable")) => false,
            Some(("sslmode", "require" | "verify-full")) => true,
            Some(("sslmode", _)) => {
                return Err(invalid("sslmode is disable, require or verify-full"));
            }
            _ => return Err(invalid("the only parameter is sslmode")),
        };
    }
    Ok(tls)
}

fn decode(text: &str, what: &str) -> Result<String, SqlError> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(invalid(&format!("the {what} is not UTF-8"))),
    }
}

/// Reads the first line of a small file.
fn read_secret(path: &str) -> Result<String, SqlError> {
    let failed = |why: &dyn fmt::Display| SqlError::Options(format!("cannot read {path}: {why}"));
    let size = std::fs::metadata(path).map_err(|error| failed(&error))?.len();
    if size > SECRET_BYTES_MAX {
        return Err(failed(&format!("a secret has at most {SECRET_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_servers_user_and_database() {
        for (url, shown, user, password, tls) in [
            ("postgres://a@db/tasks", "db:5432/tasks", "a", None, false),
            ("postgresql://a:b@db:1/tasks", "db:1/tasks", "a", Some("b"), false),
            ("mysql://a:b@db/tasks?sslmode=require", "db:3306/tasks", "a", Some("b"), true),
            ("mysql://a:@db/tasks?sslmode=disable", "db:3306/tasks", "a", None, false),
            ("postgres://a:x/y@z?@db,[::1]:7/t", "db:5432,[::1]:7/t", "a", Some("x/y@z?"), false),
            ("postgres://a%40b:%40c@db/t%20s", "db:5432/t s", "a@b", Some("@c"), false),
        ] {
            let options = SqlOptions::from_url(url).unwrap();
            assert_eq!(options.shown(), shown, "{url}");
            assert_eq!(options.user, user);
            assert_eq!(options.password.as_ref().map(SqlSecret::reveal), password);
            assert_eq!(options.tls, tls);
        }
    }

    #[test]
    fn an_invalid_url_is_refused_with_a_reason_that_shows_no_secret() {
        for (url, part) in [
            ("redis://a:hush@db/t", "postgres://"),
            ("a:hush@db", "postgres://"),
            ("postgres://db/t", "user is missing"),
            ("postgres://:hush@db/t", "user is missing"),
            ("postgres://a:hush@/t", "host is missing"),
            ("postgres://a:hush@db", "database is missing"),
            ("postgres://a:hush@db/t/u", "database is missing"),
            ("postgres://a:hush@db:x/t", "not a port"),
            ("postgres://a:hush@db/t?sslmode=prefer", "sslmode"),
            ("postgres://a:hush@db/t?x=y", "only parameter"),
            ("postgres://a:@/no/such/file@db/t", "/no/such/file"),
            ("@/no/such/file", "/no/such/file"),
            ("postgres://a:hush@a,b,c,d,e,f,g,h,i/t", "at most 8"),
        ] {
            let error = SqlOptions::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("hush"), "{url}: {error}");
        }
    }

    #[test]
    fn a_url_or_its_password_can_be_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        std::fs::write(&file, "hush %40\n").unwrap();
        let options = SqlOptions::from_url(&format!("postgres://a:@{path}@db/t")).unwrap();
        assert_eq!(options.password.as_ref().unwrap().reveal(), "hush %40");
        assert!(!format!("{options:?}").contains("hush"));
        std::fs::write(&file, "mysql://a:hush@db/t\n").unwrap();
        let options = SqlOptions::from_url(&format!("@{path}")).unwrap();
        assert_eq!((options.kind, options.shown()), (SqlKind::Mysql, "db:3306/t".to_owned()));
        std::fs::write(&file, vec![b'x'; 5000]).unwrap();
        assert!(SqlOptions::from_url(&format!("@{path}")).is_err());
    }
}
