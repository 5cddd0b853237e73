//! Redis and PostgreSQL, for comparison: an instance of each in the directory of the bench.
//!
//! Both are driven over 16 TCP connections in their own protocol, without a client library; Redis
//! with the connections of `punctual bench`. Each task is durable before it is acknowledged. An
//! instance is stopped when it goes out of scope; a server that is not installed is reported and
//! left out.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use punctual_bench::{BenchRedis, Fsync, RespConnection};
use punctual_core::PartitionId;
use punctual_store::codec::put_task;

use crate::machine;
use crate::owners::{BenchResult, OWNERS};
use crate::tasks::{TaskMaker, id_of};

/// `ZADD` commands that a connection sends before it reads the replies.
const PIPELINE: u64 = 512;
/// Rows of one `INSERT`, which is one transaction.
const INSERT_ROWS: u64 = 500;

/// What a server reached.
#[derive(Debug, Clone, Copy)]
pub struct ServerFigures {
    pub per_second: f64,
    /// CPU time of the server per task, if it is one process.
    pub cpu_micros: f64,
}

/// Measures Redis with `appendfsync always`.
pub fn redis(dir: &Path, tasks: u64) -> BenchResult<ServerFigures> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = BenchRedis::start(dir, Fsync::Always).await?;
        let pid = server.pid().map_or(String::new(), |pid| pid.to_string());
        let each = tasks / OWNERS / PIPELINE * PIPELINE;
        let (clock, cpu) = (machine::start(), machine::cpu(&pid));
        let senders: Vec<_> = (0..OWNERS as u16)
            .filter_map(PartitionId::new)
            .map(|owner| runtime.spawn(zadd(server.port(), owner, each)))
            .collect();
        for sender in senders {
            sender.await??;
        }
        let seconds = clock.elapsed().as_secs_f64();
        let done = (each * OWNERS) as f64;
        let cpu = machine::cpu(&pid).saturating_sub(cpu);
        Ok(ServerFigures { per_second: done / seconds, cpu_micros: cpu.as_secs_f64() * 1e6 / done })
    })
}

async fn zadd(port: u16, owner: PartitionId, each: u64) -> anyhow::Result<()> {
    let maker = TaskMaker::new();
    let mut connection = RespConnection::connect(port).await?;
    let key = format!("tasks:{owner}");
    let mut record = Vec::new();
    for first in (0..each).step_by(PIPELINE as usize) {
        for sequence in first..first + PIPELINE {
            let task = maker.task(owner, sequence);
            record.clear();
            put_task(&mut record, &task);
            let score = task.fire_at.as_millis().to_string();
            connection.command(4).word(b"ZADD").word(key.as_bytes());
            connection.word(score.as_bytes()).word(&record);
        }
        connection.send().await?;
        for _ in 0..PIPELINE {
            let added = connection.number().await?;
            anyhow::ensure!(added == 1, "Redis has added {added} members");
        }
    }
    Ok(())
}

/// Measures PostgreSQL with `synchronous_commit`.
pub fn postgres(dir: &Path, tasks: u64) -> BenchResult<ServerFigures> {
    let server = PostgresProcess::start(&dir.join("postgres"))?;
    let mut connection = PostgresConnection::open(server.port)?;
    // One index, the minimum to find due tasks.
    connection.query(
        "create table tasks (fire_at bigint, id uuid, payload text, primary key (fire_at, id))",
    )?;
    let each = tasks / OWNERS / INSERT_ROWS * INSERT_ROWS;
    let clock = machine::start();
    on_threads(|owner| insert_rows(server.port, owner, each))?;
    let seconds = clock.elapsed().as_secs_f64();
    Ok(ServerFigures { per_second: (each * OWNERS) as f64 / seconds, cpu_micros: f64::NAN })
}

fn insert_rows(port: u16, owner: PartitionId, each: u64) -> BenchResult<()> {
    use std::fmt::Write as _;
    let maker = TaskMaker::new();
    let mut connection = PostgresConnection::open(port)?;
    let mut query = String::new();
    for first in (0..each).step_by(INSERT_ROWS as usize) {
        query.clear();
        query.push_str("insert into tasks values ");
        for sequence in first..first + INSERT_ROWS {
            let id = id_of(owner, sequence);
            let payload = maker.payload(id);
            let comma = if sequence == first { "" } else { "," };
            let (due, bits) = (id.due().as_millis(), id.as_u128());
            let payload = std::str::from_utf8(&payload)?;
            write!(query, "{comma}({due},'{bits:032x}','{payload}')")?;
        }
        connection.query(&query)?;
    }
    Ok(())
}

struct PostgresProcess {
    port: u16,
    data: PathBuf,
    bin: PathBuf,
}

impl PostgresProcess {
    fn start(dir: &Path) -> BenchResult<PostgresProcess> {
        let bin = postgres_bin().ok_or("postgresql is not installed")?;
        std::fs::create_dir_all(dir)?;
        if machine::is_root() {
            run(Command::new("chown").arg("postgres").arg(dir))?;
        }
        let port = free_port()?;
        let server = PostgresProcess { port, data: dir.join("data"), bin };
        run(server.command("initdb").args(["-A", "trust", "-U", "postgres", "--no-sync"]))?;
        let settings = format!(
            "-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' \
             -c synchronous_commit=on -c fsync=on -c shared_buffers=1GB -c max_wal_size=16GB \
             -c checkpoint_timeout=1h"
        );
        let log = dir.join("log");
        run(server.command("pg_ctl").args(["start", "-w", "-o", &settings, "-l"]).arg(log))?;
        Ok(server)
    }

    /// PostgreSQL refuses to run as root.
    fn command(&self, program: &str) -> Command {
        let program = self.bin.join(program);
        let mut command = if machine::is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.arg("-D").arg(&self.data);
        command
    }
}

impl Drop for PostgresProcess {
    fn drop(&mut self) {
        drop(run(self.command("pg_ctl").args(["stop", "-m", "immediate"])));
    }
}

fn postgres_bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let bins = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    bins.filter(|bin| bin.join("initdb").exists()).max()
}

/// The part of the PostgreSQL protocol that inserts need.
struct PostgresConnection {
    stream: BufReader<TcpStream>,
}

impl PostgresConnection {
    fn open(port: u16) -> BenchResult<PostgresConnection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut connection = PostgresConnection { stream: BufReader::new(stream) };
        let mut hello = 196_608u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"user\0postgres\0database\0postgres\0\0");
        let length = u32::try_from(hello.len() + 4)?.to_be_bytes();
        connection.stream.get_mut().write_all(&[&length[..], &hello].concat())?;
        connection.until_ready()?;
        Ok(connection)
    }

    fn query(&mut self, text: &str) -> BenchResult<()> {
        let length = u32::try_from(text.len() + 5)?.to_be_bytes();
        let message = [b"Q", &length[..], text.as_bytes(), b"\0"].concat();
        self.stream.get_mut().write_all(&message)?;
        self.until_ready()
    }

    fn until_ready(&mut self) -> BenchResult<()> {
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let mut body = vec![0; length - 4];
            self.stream.read_exact(&mut body)?;
            match head[0] {
                b'Z' => return Ok(()),
                b'E' => return Err(String::from_utf8_lossy(&body).into_owned().into()),
                _ => {}
            }
        }
    }
}

fn on_threads(work: impl Fn(PartitionId) -> BenchResult<()> + Sync) -> BenchResult<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..OWNERS as u16)
            .filter_map(PartitionId::new)
            .map(|owner| {
                let work = &work;
                scope.spawn(move || work(owner))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

fn free_port() -> BenchResult<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn run(command: &mut Command) -> BenchResult<()> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // A started server keeps the pipe open, so only the first line is read.
    let mut child = output.spawn()?;
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let mut first = String::new();
    if let Some(stderr) = child.stderr.take() {
        BufReader::new(stderr).read_line(&mut first)?;
    }
    Err(format!("{:?}: {status}: {}", command.get_program(), first.trim()).into())
}
