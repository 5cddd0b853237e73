//! A PostgreSQL or MariaDB server as a child process, on a free port, with its data in a new
//! directory, and sessions with it.
//!
//! Each commit is synced. The server has a gigabyte of memory for pages, and a log that is long
//! enough that its size forces no checkpoint within a minute; everything else is as it is
//! installed. It is killed, by its id, and its data is removed when the bench ends, however it
//! ends.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail, ensure};
use punctual_sql::mysql_async::prelude::Queryable as _;
use punctual_sql::postgres::PostgresClient;
use punctual_sql::{SqlKind, SqlOptions, mysql, mysql_async, postgres};
use tokio::process::{Child, Command};

use crate::broker::disk_bytes;
use crate::clock::pause;

/// How often a connection is tried, 100 ms apart, before the bench gives up.
const TRIES_MAX: usize = 600;
/// The account of all databases. The server listens on loopback only.
const ACCOUNT: &str = "bench";
/// Where Debian has the programs of PostgreSQL, by version.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

const POSTGRES_SETTINGS: [&str; 5] = [
    "unix_socket_directories=",
    "fsync=on",
    "synchronous_commit=on",
    "shared_buffers=1GB",
    "max_wal_size=2GB",
];
const MARIADB_SETTINGS: [&str; 4] = [
    "--skip-name-resolve",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-buffer-pool-size=1G",
    "--innodb-log-file-size=512M",
];

/// A database server that the bench has started.
#[derive(Debug)]
pub(crate) struct BenchDatabase {
    kind: SqlKind,
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl BenchDatabase {
    /// Starts a server with a new directory in `dir`, and waits until it answers.
    pub(crate) async fn start(kind: SqlKind, dir: &Path) -> anyhow::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = dir.join(format!("punctual-bench-sql-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).context("cannot create a directory for the database")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let started = match kind {
            SqlKind::Postgres => start_postgres(&dir, port).await,
            SqlKind::Mysql => start_mariadb(&dir, port).await,
        };
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                let _ = std::fs::remove_dir_all(&dir);
                return Err(error);
            }
        };
        let mut server = Self { kind, child, port, dir };
        server.wait_until_it_answers().await?;
        Ok(server)
    }

    async fn wait_until_it_answers(&mut self) -> anyhow::Result<()> {
        for _ in 0..TRIES_MAX {
            if self.session(self.system_database()).await.is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the database server ended before it answered: {status}");
            }
            pause(100).await;
        }
        bail!("the database server does not answer on port {}", self.port);
    }

    pub(crate) const fn kind(&self) -> SqlKind {
        self.kind
    }

    /// The kind as the configuration of a connection writes it.
    pub(crate) const fn kind_word(&self) -> &'static str {
        match self.kind {
            SqlKind::Postgres => "postgres",
            SqlKind::Mysql => "mysql",
        }
    }

    const fn system_database(&self) -> &'static str {
        match self.kind {
            SqlKind::Postgres => "postgres",
            SqlKind::Mysql => "mysql",
        }
    }

    /// The id of the process, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        disk_bytes(&self.dir)
    }

    /// Returns the URL of a database.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("{}://{ACCOUNT}@127.0.0.1:{}/{database}", self.kind_word(), self.port)
    }

    /// Opens a session with a database.
    pub(crate) async fn session(&self, database: &str) -> anyhow::Result<BenchSession> {
        BenchSession::open(&self.url(database)).await
    }

    /// Creates a database. One of that name is removed with all that it has.
    pub(crate) async fn create(&self, name: &str) -> anyhow::Result<()> {
        let mut session = self.session(self.system_database()).await?;
        let force = if self.kind == SqlKind::Postgres { " WITH (FORCE)" } else { "" };
        session.run(&format!("DROP DATABASE IF EXISTS {name}{force}")).await?;
        session.run(&format!("CREATE DATABASE {name}")).await
    }
}

impl Drop for BenchDatabase {
    fn drop(&mut self) {
        // PostgreSQL ends its processes itself, at once with this signal.
        if let Some(pid) = self.child.id() {
            let quit =
                std::process::Command::new("kill").args(["-QUIT", &pid.to_string()]).status();
            let ended = quit.is_ok() && (0..50).any(|_| self.has_ended());
            if !ended {
                let _ = self.child.start_kill();
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl BenchDatabase {
    #[expect(clippy::disallowed_methods, reason = "a drop cannot await; its waits are bounded")]
    fn has_ended(&mut self) -> bool {
        let ended = !matches!(self.child.try_wait(), Ok(None));
        if !ended {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        ended
    }
}

/// A session with a database.
pub(crate) enum BenchSession {
    Postgres(Box<PostgresClient>),
    Mysql(mysql_async::Conn),
}

impl BenchSession {
    pub(crate) async fn open(url: &str) -> anyhow::Result<Self> {
        let mut options = SqlOptions::from_url(url)?;
        options.statement_timeout = std::time::Duration::from_secs(600);
        Ok(match options.kind {
            SqlKind::Postgres => Self::Postgres(Box::new(postgres::connect(&options).await?)),
            SqlKind::Mysql => Self::Mysql(mysql::connect(&options).await?),
        })
    }

    /// Runs statements in one message.
    pub(crate) async fn run(&mut self, statements: &str) -> anyhow::Result<()> {
        match self {
            Self::Postgres(client) => client.batch_execute(statements).await?,
            Self::Mysql(connection) => connection.query_drop(statements).await?,
        }
        Ok(())
    }

    /// Returns the number that a query selects.
    pub(crate) async fn number(&mut self, query: &str) -> anyhow::Result<u64> {
        let number: Option<i64> = match self {
            Self::Postgres(client) => client.query_one(query, &[]).await?.try_get(0)?,
            Self::Mysql(connection) => connection.query_first(query).await?,
        };
        Ok(u64::try_from(number.context("the query has no row")?)?)
    }
}

async fn start_postgres(dir: &Path, port: u16) -> anyhow::Result<Child> {
    const MISSING: &str = "cannot start PostgreSQL: install it (Debian: package postgresql)";
    let programs = postgres_programs().context(MISSING)?;
    let user = own_by(dir, "postgres").await?;
    let data = dir.join("data");
    let mut init = as_user(user, &programs.join("initdb"));
    init.args(["-A", "trust", "-E", "UTF8", "--locale=C", "-U", ACCOUNT, "-D"]).arg(&data);
    run_to_end(init).await.context(MISSING)?;
    let mut server = as_user(user, &programs.join("postgres"));
    server.arg("-D").arg(&data).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
    for setting in POSTGRES_SETTINGS {
        server.args(["-c", setting]);
    }
    spawn(server, dir)
}

/// The folder of the programs: the newest version of Debian's packages, or that of the `PATH`.
fn postgres_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(POSTGRES_VERSIONS).into_iter().flatten().flatten();
    let programs = versions.filter_map(|version| {
        let number: u32 = version.file_name().to_str()?.parse().ok()?;
        let folder = version.path().join("bin");
        folder.join("initdb").exists().then_some((number, folder))
    });
    let newest = programs.max().map(|(_, folder)| folder);
    newest.or_else(|| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).find(|folder| folder.join("initdb").exists())
    })
}

async fn start_mariadb(dir: &Path, port: u16) -> anyhow::Result<Child> {
    const MISSING: &str = "cannot start MariaDB: install it (Debian: package mariadb-server)";
    let data = dir.join("data");
    let grants = dir.join("grants.sql");
    let text = format!("CREATE USER {ACCOUNT}@'%';\nGRANT ALL ON *.* TO {ACCOUNT}@'%';\n");
    std::fs::write(&grants, format!("FLUSH PRIVILEGES;\n{text}"))?;
    // With the file, which only its owner can read.
    let user = own_by(dir, "mysql").await?;
    let mut init = as_user(user, Path::new("mariadb-install-db"));
    init.args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]);
    init.arg(format!("--datadir={}", data.display()));
    init.arg(format!("--extra-file={}", grants.display()));
    run_to_end(init).await.context(MISSING)?;
    let mut server = as_user(user, Path::new("/usr/sbin/mariadbd"));
    server.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
    server.arg(format!("--socket={}", dir.join("socket").display()));
    server.args([&format!("--port={port}"), "--bind-address=127.0.0.1"]).args(MARIADB_SETTINGS);
    spawn(server, dir).context(MISSING)
}

/// Gives a folder to the user of a server, which refuses to run as root. Returns the user that it
/// has to run as, if this process is root.
async fn own_by(dir: &Path, user: &'static str) -> anyhow::Result<Option<&'static str>> {
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(None);
    }
    let mut command = Command::new("chown");
    command.args(["-R", &format!("{user}:")]).arg(dir);
    run_to_end(command).await?;
    Ok(Some(user))
}

fn as_user(user: Option<&str>, program: &Path) -> Command {
    let Some(user) = user else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups", "--"]);
    command.arg(program);
    command
}

async fn run_to_end(mut command: Command) -> anyhow::Result<()> {
    let output = command.current_dir("/").stdin(Stdio::null()).output().await?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", output.status, text.trim());
    Ok(())
}

/// Starts a server, whose output goes to a file in its folder.
fn spawn(mut command: Command, dir: &Path) -> anyhow::Result<Child> {
    let log = std::fs::File::create(dir.join("log"))?;
    let command = command.current_dir("/").stdin(Stdio::null()).stdout(log.try_clone()?);
    Ok(command.stderr(log).kill_on_drop(true).spawn()?)
}
