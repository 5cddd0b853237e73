//! Real RabbitMQ servers on free ports, as an unprivileged user.
//!
//! [`RabbitmqServer`] is one server that a test starts, kills and starts again. Starting takes
//! seconds, so tests that need any running server share one ([`RabbitmqServer::shared`]) and use
//! queues of their own. A server listens with and without TLS. Its epmd, by which Erlang processes
//! find each other, is its own, so nothing of an installed service is used. pika, a client in
//! Python, is the witness of what a queue has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::certificate::make_certificate;
use crate::ports::free_port;
use crate::server_process::{ServerProcess, as_user, give};
use crate::shared_server::{SharedKind, SharedServers, detached, join, target_tmp_dir};
use crate::wait::{wait_for, wait_long_for};

/// The user that servers run as if the test runs as root. Debian's package makes it.
const SYSTEM_USER: &str = "rabbitmq";
/// The program of Debian's package.
const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// The password of the accounts that are not `guest`.
pub const PASSWORD: &str = "hush-hush";
/// Accounts and virtual hosts. `limited` may publish to exchanges whose name begins with `open`,
/// and to queues.
const DEFINITIONS: &str = r#"{"vhosts": [{"name": "/"}, {"name": "shop"}], "users": [
{"name": "guest", "password": "guest", "tags": "administrator"},
{"name": "punctual", "password": "hush-hush", "tags": ""},
{"name": "limited", "password": "hush-hush", "tags": ""}], "permissions": [
{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
{"user": "punctual", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
{"user": "punctual", "vhost": "shop", "configure": "", "write": ".*", "read": ""},
{"user": "limited", "vhost": "/", "configure": "", "write": "^(open.*|amq.default)$",
 "read": ""}]}"#;
/// Runs one command of the witness. `$1` is the port, then the command and its words.
const WITNESS: &str = include_str!("rabbitmq.py");
/// Bytes of the largest message that a server takes.
pub const MESSAGE_BYTES_MAX: usize = 200_000;

/// A RabbitMQ server, running or not.
pub struct RabbitmqServer {
    pub port: u16,
    pub tls_port: u16,
    dir: PathBuf,
    own: Option<OwnServer>,
}

/// A server that no other test uses.
struct OwnServer {
    _dir: TempDir,
    _epmd: ServerProcess,
    epmd_port: u16,
    dist_port: u16,
    process: Option<ServerProcess>,
}

impl RabbitmqServer {
    /// Returns the server that all tests share. It must not be killed.
    pub fn shared() -> Self {
        static SERVER: OnceLock<SharedServers> = OnceLock::new();
        let started = SERVER.get_or_init(|| {
            join(&SharedKind {
                name: "rabbitmq",
                answers: &answers,
                start: &start_shared,
                finish: &|_| (),
            })
        });
        let [_, port, tls_port] = started.ports[..] else { panic!("three ports are needed") };
        let dir = target_tmp_dir().join("rabbitmq").join(format!("server-{port}"));
        Self { port, tls_port, dir, own: None }
    }

    /// Starts a server of the test's own.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (port, tls_port, epmd_port, dist_port) =
            (free_port(), free_port(), free_port(), free_port());
        let path = dir.path().to_path_buf();
        let epmd_dir = path.join("epmd");
        fs::create_dir(&epmd_dir).unwrap();
        prepare(&path, port, tls_port);
        let epmd = ServerProcess::start(&epmd_dir, &epmd_command(epmd_port));
        wait_for("epmd to answer", || answers(epmd_port));
        let own = OwnServer { _dir: dir, _epmd: epmd, epmd_port, dist_port, process: None };
        let mut server = Self { port, tls_port, dir: path, own: Some(own) };
        server.start_again();
        server
    }

    /// Starts the server again, with the same ports and what it had stored.
    pub fn start_again(&mut self) {
        let own = self.own.as_mut().expect("the server is shared");
        assert!(own.process.is_none(), "the server runs");
        let words = server_command(&self.dir, self.port, own.epmd_port, own.dist_port);
        own.process = Some(ServerProcess::start(&self.dir, &words));
        wait_long_for("RabbitMQ to answer", || answers(self.port));
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(process) = self.own.as_mut().and_then(|own| own.process.take()) {
            process.kill();
        }
    }

    /// The file with the certificate authority that signed the server's certificate.
    pub fn authority_file(&self) -> PathBuf {
        self.dir.join("server.crt")
    }

    /// Runs a command of the witness. Returns what it prints, line by line.
    pub fn witness(&self, words: &[&str]) -> Vec<Value> {
        let out = Command::new("/usr/bin/python3")
            .args(["-c", WITNESS, &self.port.to_string()])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .expect("package python3 is needed");
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{words:?} (with package python3-pika): {errors}");
        let printed = String::from_utf8(out.stdout).unwrap();
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Makes the files of a server in its folder.
fn prepare(dir: &Path, port: u16, tls_port: u16) {
    let (certificate, key) = make_certificate();
    let shown = dir.display();
    let config = format!(
        "listeners.tcp.default = 127.0.0.1:{port}\n\
         listeners.ssl.default = 127.0.0.1:{tls_port}\n\
         ssl_options.cacertfile = {shown}/server.crt\n\
         ssl_options.certfile = {shown}/server.crt\n\
         ssl_options.keyfile = {shown}/server.key\n\
         ssl_options.verify = verify_none\n\
         loopback_users = none\n\
         load_definitions = {shown}/definitions.json\n\
         max_message_size = {MESSAGE_BYTES_MAX}\n\
         log.console = false\nlog.file = false\n"
    );
    for (name, text) in [
        ("server.crt", &*certificate),
        ("server.key", &*key),
        ("definitions.json", DEFINITIONS),
        ("rabbitmq.conf", &*config),
        ("plugins", "[]."),
    ] {
        fs::write(dir.join(name), text).expect("write the file");
    }
    give(dir, SYSTEM_USER);
}

fn epmd_command(port: u16) -> Vec<String> {
    let words = ["epmd", "-port", &port.to_string(), "-address", "127.0.0.1"];
    as_user(SYSTEM_USER, words.map(str::to_owned).to_vec())
}

fn server_command(dir: &Path, port: u16, epmd_port: u16, dist_port: u16) -> Vec<String> {
    let shown = dir.display();
    let path = std::env::var("PATH").unwrap_or_default();
    let settings = [
        format!("PATH={path}"),
        "LANG=C.UTF-8".to_owned(),
        format!("HOME={shown}"),
        // It then stays in the foreground and reads no input.
        "RUNNING_UNDER_SYSTEMD=1".to_owned(),
        format!("ERL_EPMD_PORT={epmd_port}"),
        "ERL_EPMD_ADDRESS=127.0.0.1".to_owned(),
        format!("RABBITMQ_NODENAME=test{port}@localhost"),
        format!("RABBITMQ_DIST_PORT={dist_port}"),
        format!("RABBITMQ_MNESIA_BASE={shown}/mnesia"),
        format!("RABBITMQ_LOG_BASE={shown}/log"),
        format!("RABBITMQ_PID_FILE={shown}/server.pid"),
        format!("RABBITMQ_CONFIG_FILE={shown}/rabbitmq"),
        format!("RABBITMQ_ENABLED_PLUGINS_FILE={shown}/plugins"),
        "RABBITMQ_CONF_ENV_FILE=/dev/null".to_owned(),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}"
            .to_owned(),
    ];
    assert!(Path::new(PROGRAM).exists(), "package rabbitmq-server is needed");
    let mut words = vec!["env".to_owned(), "-i".to_owned(), format!("--chdir={shown}")];
    words.extend(settings);
    words.push(PROGRAM.to_owned());
    as_user(SYSTEM_USER, words)
}

fn start_shared(dir: &Path) -> Vec<(u32, u16)> {
    let (port, tls_port, epmd_port) = (free_port(), free_port(), free_port());
    let own = dir.join(format!("server-{port}"));
    fs::create_dir_all(&own).expect("make the folder");
    prepare(&own, port, tls_port);
    let mut started = StartedProcesses::default();
    let mut spawn = |words: &[String]| {
        let process = detached(&words[0]).args(&words[1..]).spawn();
        started.0.push(process.expect("the program starts").id());
    };
    spawn(&epmd_command(epmd_port));
    wait_for("epmd to answer", || answers(epmd_port));
    spawn(&server_command(&own, port, epmd_port, free_port()));
    wait_long_for("RabbitMQ to answer", || answers(port));
    let pids = std::mem::take(&mut started.0);
    vec![(pids[0], epmd_port), (pids[1], port), (pids[1], tls_port)]
}

/// Processes that were started; dropping this ends them.
#[derive(Default)]
struct StartedProcesses(Vec<u32>);

impl Drop for StartedProcesses {
    fn drop(&mut self) {
        for pid in &self.0 {
            // It may have ended by itself.
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
        }
    }
}

fn answers(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}
