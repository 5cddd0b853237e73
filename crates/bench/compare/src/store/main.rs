//! Compares the embedded store with its targets, and with Redis and PostgreSQL: one table, one run.
//!
//! Everything happens in a directory of its own, which is removed at the end. Every part runs in
//! its own process and checks its work. `parts` has the work, `owners` the owners that do it,
//! `tasks` the tasks, `servers` Redis and PostgreSQL, `machine` the figures of the machine,
//! `figures` the table. The table is printed to standard output, progress to standard error.
//!
//! `cargo run --release -p punctual-bench-compare --bin bench-store`

mod figures;
mod machine;
mod owners;
mod parts;
mod servers;
mod tasks;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use figures::{StoreFigures, TableRow, grouped};
use owners::{BATCH, BenchResult, OWNERS};
use parts::KEYS;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Tasks for Redis and PostgreSQL: more would not change the rates, and Redis keeps them in memory.
const SERVER_TASKS: u64 = 2_000_000;
/// Tasks for a single owner.
const SINGLE_TASKS: u64 = 1_000_000;
/// Tasks that are acknowledged after the measurement, before the process is killed.
const ACKED_BEFORE_KILL: u64 = 200 * BATCH;
/// Disk space of one task at most, while runs are rewritten and history is kept.
const DISK_BYTES_PER_TASK: u64 = 450;
/// Disk space of all servers without tasks.
const DISK_BYTES: u64 = 4 << 30;

const USAGE: &str = "usage: bench-store [--tasks N] \
     [--only insert,open,disk,cancel,fire,touch,fires] [--dir DIR] [--json] [--no-redis] \
     [--no-postgres]";
const PARTS: &[&str] = &["insert", "open", "disk", "cancel", "fire", "touch", "fires"];

struct StoreBenchArgs {
    tasks: u64,
    only: Vec<String>,
    dir: PathBuf,
    json: bool,
    redis: bool,
    postgres: bool,
    /// Set when the bench starts itself: run this part in this process.
    part: Option<String>,
}

impl StoreBenchArgs {
    fn read(mut args: impl Iterator<Item = String>) -> Option<StoreBenchArgs> {
        let mut read = StoreBenchArgs {
            tasks: 10_000_000,
            only: PARTS.iter().map(|part| (*part).to_owned()).collect(),
            dir: std::env::temp_dir(),
            json: false,
            redis: true,
            postgres: true,
            part: None,
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--tasks" => read.tasks = args.next()?.replace('_', "").parse().ok()?,
                "--only" => read.only = args.next()?.split(',').map(str::to_owned).collect(),
                "--dir" => read.dir = args.next()?.into(),
                "--part" => read.part = Some(args.next()?),
                "--json" => read.json = true,
                "--no-redis" => read.redis = false,
                "--no-postgres" => read.postgres = false,
                _ => return None,
            }
        }
        let known = read.only.iter().all(|part| PARTS.contains(&part.as_str()));
        // Every owner needs a few batches, or there is nothing to measure.
        (known && read.tasks >= OWNERS * BATCH * 10).then_some(read)
    }

    fn wants(&self, parts: &[&str]) -> bool {
        parts.iter().any(|part| self.only.iter().any(|only| only == part))
    }
}

fn main() -> ExitCode {
    // RUST_LOG=debug shows the checkpoints of the store.
    let levels = std::env::var("RUST_LOG").ok().and_then(|levels| levels.parse::<Targets>().ok());
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(levels.unwrap_or_default()).with(log).init();
    let Some(args) = StoreBenchArgs::read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}\n--tasks is at least {}", OWNERS * BATCH * 10);
        return ExitCode::FAILURE;
    };
    let outcome = match &args.part {
        Some(part) => run_part(part, &args),
        None => run_in_directory(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run_part(part: &str, args: &StoreBenchArgs) -> BenchResult<()> {
    let StoreBenchArgs { dir, tasks, .. } = args;
    let figures = match part {
        "one" => parts::insert(dir, *tasks, 1, false),
        "grow" => parts::insert(dir, *tasks, OWNERS, true),
        "insert" => parts::insert(dir, *tasks, OWNERS, false),
        "open" => parts::open(dir),
        "cancel" => parts::cancel(dir, *tasks),
        "fire" => parts::fire(dir, *tasks),
        "touch" => parts::touch(dir, *tasks),
        "fires" => parts::fires(dir, *tasks),
        _ => Err(format!("no part {part}").into()),
    }?;
    println!("{figures}end 1");
    Ok(())
}

fn run_in_directory(args: &StoreBenchArgs) -> BenchResult<()> {
    let dir = args.dir.join(format!("bench-store-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let outcome = check_free_disk(&dir, args.tasks).and_then(|()| measure_all(&dir, args));
    std::fs::remove_dir_all(&dir)?;
    let rows = outcome?;
    if args.json {
        print_json(&rows);
    }
    Ok(())
}

fn check_free_disk(dir: &Path, tasks: u64) -> BenchResult<()> {
    let (free, needed) = (machine::free_bytes(dir), tasks * DISK_BYTES_PER_TASK + DISK_BYTES);
    match free {
        Some(free) if free < needed => Err(format!(
            "{} has {} MB free, {} tasks may need {} MB",
            dir.display(),
            free / 1_000_000,
            tasks,
            needed / 1_000_000
        )
        .into()),
        _ => Ok(()),
    }
}

/// Runs the chosen parts and prints the table.
fn measure_all(dir: &Path, args: &StoreBenchArgs) -> BenchResult<Vec<TableRow>> {
    let load_before = machine::load();
    let mut rows = Vec::new();
    let main = dir.join("main");
    if args.wants(&["insert", "open", "disk", "cancel", "fire"]) {
        let mut insert = InsertComparison::default();
        if args.wants(&["insert"]) {
            insert.one = part("one", &dir.join("one"), args.tasks.min(SINGLE_TASKS))?;
            std::fs::remove_dir_all(dir.join("one"))?;
            insert.run_servers(dir, args);
        }
        let (grown, acked) = grow_and_kill(&main, args.tasks)?;
        if args.wants(&["insert"]) {
            insert.run_servers(dir, args);
            insert.rows(&grown, &mut rows);
        }
        measure_grown_store(&main, args, &grown, acked, &mut rows)?;
    }
    if args.wants(&["touch"]) {
        let touched = part("touch", &dir.join("touch"), KEYS.min(args.tasks))?;
        touch_rows(&touched, &mut rows);
    }
    if args.wants(&["fires"]) {
        let fires = part("fires", &dir.join("fires"), KEYS.min(args.tasks))?;
        fires_rows(&fires, &mut rows);
    }
    let load = machine::load();
    let head = format!(
        "{} tasks, payloads of {} bytes, due at random over {} days; \
         load before {load_before}, after {load}",
        grouped(args.tasks as f64),
        tasks::PAYLOAD_BYTES,
        tasks::DAYS,
    );
    if !args.json {
        println!("\n{head}\n\n| measurement | result | target | |\n|---|---|---|---|");
        rows.iter().for_each(|row| println!("{row}"));
    }
    Ok(rows)
}

/// Runs the parts that use the store that was grown and killed.
fn measure_grown_store(
    main: &Path,
    args: &StoreBenchArgs,
    grown: &StoreFigures,
    acked: u64,
    rows: &mut Vec<TableRow>,
) -> BenchResult<()> {
    let opened = part("open", main, args.tasks)?;
    let (scheduled, inserted) = (opened.get("scheduled"), grown.get("tasks"));
    let acknowledged = inserted + acked as f64;
    if scheduled < acknowledged || scheduled > acknowledged + (OWNERS * BATCH * 8) as f64 {
        return Err(
            format!("{acknowledged} tasks were acknowledged, {scheduled} are stored").into()
        );
    }
    if args.wants(&["open"]) {
        open_rows(args.tasks, &opened, rows);
    }
    let records = scheduled * grown.get("record_bytes");
    if args.wants(&["disk"]) {
        let (rest, killed) = (opened.get("disk_bytes"), opened.get("killed_disk_bytes"));
        let reached = format!(
            "{:.2} × ({} MB; {:.2} × when it was killed)",
            rest / records,
            grouped(rest / 1e6),
            killed / records
        );
        let what = format!(
            "disk at rest, closed, of {} MB of encoded records ({:.0} bytes each)",
            grouped(records / 1e6),
            grown.get("record_bytes")
        );
        rows.push(TableRow::new(what, reached).wanted("≤ 1.6 ×", rest / records <= 1.6));
    }
    let mut cancelled = StoreFigures::default();
    if args.wants(&["cancel"]) {
        cancelled = part("cancel", main, args.tasks)?;
        cancel_rows(&cancelled, rows);
    }
    if args.wants(&["fire", "disk"]) {
        let fired = part("fire", main, args.tasks)?;
        check_fired(grown, &cancelled, &fired)?;
        if args.wants(&["fire"]) {
            fire_rows(&fired, rows);
        }
        if args.wants(&["disk"]) {
            swept_rows(records, &fired, rows);
        }
    }
    Ok(())
}

/// Checks that every task that was inserted and not cancelled has fired once.
fn check_fired(
    grown: &StoreFigures,
    cancelled: &StoreFigures,
    fired: &StoreFigures,
) -> BenchResult<()> {
    let number = |figures: &StoreFigures, name| {
        let value = figures.get(name);
        if value.is_nan() { 0 } else { value as u64 }
    };
    let count = number(grown, "tasks") - number(cancelled, "cancelled");
    let sum = number(grown, "sum").wrapping_sub(number(cancelled, "sum")) & ((1 << 48) - 1);
    let found = (number(fired, "fired"), number(fired, "sum"));
    if found == (count, sum) {
        return Ok(());
    }
    Err(format!("{count} tasks should have fired with sum {sum}, but did {found:?}").into())
}

/// Runs one part in a process of its own, to its end.
fn part(name: &str, dir: &Path, tasks: u64) -> BenchResult<StoreFigures> {
    eprintln!("{name}");
    let mut child = spawn(name, dir, tasks)?;
    let mut figures = StoreFigures::default();
    let stdout = child.stdout.take().ok_or("no pipe")?;
    for line in BufReader::new(stdout).lines() {
        figures.take_line(&line?).ok_or("a part printed a line that is not a figure")?;
    }
    let status = child.wait()?;
    if !status.success() || figures.get("end").is_nan() {
        return Err(format!("{name} failed: {status}").into());
    }
    print_figures(name, &figures);
    Ok(figures)
}

/// Grows a store, and kills its process while it inserts further tasks. Returns the figures, and
/// how many of the further tasks were acknowledged.
fn grow_and_kill(dir: &Path, tasks: u64) -> BenchResult<(StoreFigures, u64)> {
    eprintln!("grow, then kill -9");
    let mut child = spawn("grow", dir, tasks)?;
    let (mut figures, mut acked) = (StoreFigures::default(), 0);
    let stdout = child.stdout.take().ok_or("no pipe")?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        match line.strip_prefix("acked ") {
            None => figures.take_line(&line).ok_or("a part printed a line that is not a figure")?,
            Some(number) => acked = acked.max(number.parse()?),
        }
        // The pipe may hold more lines, so at least this many were acknowledged.
        if acked >= ACKED_BEFORE_KILL {
            child.kill()?;
            child.wait()?;
            print_figures("grow", &figures);
            return Ok((figures, acked));
        }
    }
    Err(format!("grow ended before it was killed: {}", child.wait()?).into())
}

fn spawn(name: &str, dir: &Path, tasks: u64) -> BenchResult<std::process::Child> {
    let bench = std::env::current_exe()?;
    let mut command = Command::new(bench);
    command.args(["--part", name, "--tasks", &tasks.to_string(), "--dir"]).arg(dir);
    Ok(command.stdout(Stdio::piped()).spawn()?)
}

fn print_figures(name: &str, figures: &StoreFigures) {
    let all: Vec<String> = figures
        .iter()
        .filter(|(name, _)| !matches!(*name, "end" | "sum"))
        .map(|(name, value)| format!("{name}={value:.2}"))
        .collect();
    eprintln!("  {name}: {}", all.join(" "));
}

/// CPU time per task, and how many cores that used: on a busy machine cores are missing, not speed.
fn cpu_of(rate: f64, micros: f64) -> String {
    format!("{micros:.2} µs CPU each, {:.1} cores", rate * micros / 1e6)
}

/// Insert compared with Redis and PostgreSQL, which run before and after it, so that a change of
/// the load of the machine shows.
#[derive(Default)]
struct InsertComparison {
    one: StoreFigures,
    redis: Vec<servers::ServerFigures>,
    postgres: Vec<servers::ServerFigures>,
}

impl InsertComparison {
    fn run_servers(&mut self, dir: &Path, args: &StoreBenchArgs) {
        type Server = fn(&Path, u64) -> BenchResult<servers::ServerFigures>;
        let tasks = args.tasks.min(SERVER_TASKS);
        for (name, wanted, server, reached) in [
            ("redis", args.redis, servers::redis as Server, &mut self.redis),
            ("postgres", args.postgres, servers::postgres, &mut self.postgres),
        ] {
            if !wanted {
                continue;
            }
            eprintln!("{name}");
            match server(dir, tasks) {
                Ok(figures) => {
                    eprintln!("  {name}: {}/s", grouped(figures.per_second));
                    reached.push(figures);
                }
                Err(error) => eprintln!("  {name} is left out: {error}"),
            }
            // The next instance starts empty.
            drop(std::fs::remove_dir_all(dir.join(name)));
        }
    }

    fn rows(&self, grown: &StoreFigures, rows: &mut Vec<TableRow>) {
        let rate = grown.get("per_second");
        let both = |runs: &[servers::ServerFigures]| {
            let rates: Vec<String> = runs.iter().map(|run| grouped(run.per_second)).collect();
            let mean = runs.iter().map(|run| run.per_second).sum::<f64>() / runs.len() as f64;
            (rates.join(" before, ") + " after", mean)
        };
        let what = format!(
            "durable insert, batches of {}, {OWNERS} owners, {} tasks",
            grouped(BATCH as f64),
            grouped(grown.get("tasks"))
        );
        rows.push(
            TableRow::new(what, format!("{}/s", grouped(rate))).wanted("≥ 300,000/s", rate >= 3e5),
        );
        let (cpu, making) = (grown.get("cpu_micros"), grown.get("making_cpu_micros"));
        let reached = format!(
            "{:.2} µs ({cpu:.2} with building the task; {:.1} cores; CPU steal {:.1} %)",
            cpu - making,
            rate * cpu / 1e6,
            grown.get("stolen_percent")
        );
        rows.push(TableRow::new("— CPU each", reached).wanted("≤ 2 µs", cpu - making <= 2.0));
        if !self.redis.is_empty() {
            let (rates, mean) = both(&self.redis);
            let cpu = self.redis[0].cpu_micros;
            let what =
                "— beside Redis `appendfsync always`, ZADD, pipelines of 512, 16 connections";
            let reached = format!("{:.2} × (Redis: {rates}; {cpu:.2} µs CPU each)", rate / mean);
            rows.push(TableRow::new(what, reached).wanted("≥ 1.5 ×", rate / mean >= 1.5));
        }
        if !self.postgres.is_empty() {
            let (rates, mean) = both(&self.postgres);
            let what =
                "— beside PostgreSQL, inserts of 500 rows, synchronous commit, 16 connections";
            rows.push(TableRow::new(what, format!("{:.2} × (PostgreSQL: {rates})", rate / mean)));
        }
        let one = &self.one;
        let what = format!("durable insert, 1 owner, {} tasks", grouped(one.get("tasks")));
        let reached = format!(
            "{}/s, {:.2} µs CPU each, answered in {:.1} ms (median)",
            grouped(one.get("per_second")),
            one.get("cpu_micros") - one.get("making_cpu_micros"),
            one.get("wait_p50_ms")
        );
        rows.push(TableRow::new(what, reached));
        growth_rows(grown, rows);
    }
}

fn growth_rows(grown: &StoreFigures, rows: &mut Vec<TableRow>) {
    let (first, last) = (grown.get("per_second_first"), grown.get("per_second_last"));
    let window = grouped(grown.get("window"));
    let tenth = |tenth| grown.get(&format!("per_second_tenth_{tenth}")) / 1e3;
    let tenths: Vec<String> = (1..=parts::TENTHS).map(|at| format!("{:.0}", tenth(at))).collect();
    rows.push(
        TableRow::new(
            format!("growth: rate over the last {window} beside the first {window}"),
            format!(
                "{:.2} × ({}/s, {}/s; thousands a second by tenths: {})",
                last / first,
                grouped(last),
                grouped(first),
                tenths.join(" ")
            ),
        )
        .wanted("≥ 0.7 ×", last / first >= 0.7),
    );
    let stall = grown.get("wait_max_ms");
    rows.push(
        TableRow::new(
            "— longest wait for an answer",
            format!(
                "{stall:.0} ms ({:.0} over 250 ms; median {:.1}, 99 % {:.1} ms; \
                 no answer at all for {:.0} ms, \
                 the longest fdatasync took {:.0} ms)",
                grown.get("waits_over_250_ms"),
                grown.get("wait_p50_ms"),
                grown.get("wait_p99_ms"),
                grown.get("silence_max_ms"),
                grown.get("fsync_max_ms"),
            ),
        )
        .wanted("≤ 250 ms", stall <= 250.0),
    );
    let memory = grown.get("memory_mib");
    let reached = format!("{memory:.0} MiB ({:.0} at its peak)", grown.get("memory_peak_mib"));
    let what = format!("resident memory at {} pending", grouped(grown.get("tasks")));
    rows.push(TableRow::new(what, reached).wanted("≤ 512 MiB", memory <= 512.0));
}

fn open_rows(tasks: u64, opened: &StoreFigures, rows: &mut Vec<TableRow>) {
    let seconds = opened.get("first_seconds");
    let wanted = if tasks <= 10_000_000 { 1.5 } else { 2.5 };
    let reached = format!(
        "{seconds:.2} s ({:.2} s for all {OWNERS} partitions; {:.0} commits replayed)",
        opened.get("all_first_seconds"),
        opened.get("replayed")
    );
    let what =
        format!("open after kill -9 at {}, until the first due is loaded", grouped(tasks as f64));
    rows.push(TableRow::new(what, reached).wanted(format!("≤ {wanted} s"), seconds <= wanted));
}

fn cancel_rows(cancelled: &StoreFigures, rows: &mut Vec<TableRow>) {
    for (name, what) in [
        ("spread", "cancel by id (get, settle), batches of 1,000, at random"),
        ("young", "— the same, the newest tasks"),
    ] {
        let of = |figure: &str| cancelled.get(&format!("{name}_{figure}"));
        let rate = of("per_second");
        let reached = format!(
            "{}/s ({}; {:.0} % of the time is get)",
            grouped(rate),
            cpu_of(rate, of("cpu_micros")),
            of("get_share") * 100.0
        );
        rows.push(TableRow::new(what, reached).wanted("≥ 300,000/s", rate >= 3e5));
    }
}

fn fire_rows(fired: &StoreFigures, rows: &mut Vec<TableRow>) {
    let rate = fired.get("per_second");
    let reached = format!(
        "{}/s ({}; {:.0} % of the time is load; {:.0} MiB at its peak)",
        grouped(rate),
        cpu_of(rate, fired.get("cpu_micros")),
        fired.get("load_share") * 100.0,
        fired.get("memory_peak_mib")
    );
    let what = format!("load + settle, batches of {:.0}", fired.get("per_batch"));
    rows.push(TableRow::new(what, reached).wanted("≥ 400,000/s", rate >= 4e5));
}

fn swept_rows(records: f64, fired: &StoreFigures, rows: &mut Vec<TableRow>) {
    let (swept, before) = (fired.get("closed_disk_bytes"), fired.get("fired_disk_bytes"));
    let reached = format!(
        "{:.1} % ({} MB; {:.1} % before history was swept)",
        swept / records * 100.0,
        grouped(swept / 1e6),
        before / records * 100.0
    );
    let what = "disk after everything fired, history past its age swept, checkpoint, close";
    rows.push(TableRow::new(what, reached).wanted("≤ 5 %", swept / records <= 0.05));
}

fn touch_rows(touched: &StoreFigures, rows: &mut Vec<TableRow>) {
    let rate = touched.get("per_second");
    let reached = format!(
        "{}/s ({}; {:.0} % of the time is find; {:.0} MiB at its peak)",
        grouped(rate),
        cpu_of(rate, touched.get("cpu_micros")),
        touched.get("find_share") * 100.0,
        touched.get("memory_peak_mib")
    );
    let what = format!("touch by key, batches of 1,000, {} keys", grouped(touched.get("keys")));
    rows.push(TableRow::new(what, reached).wanted("≥ 200,000/s", rate >= 2e5));
    // What the disk wrote is in the figures on standard error: it counts all processes, so it means
    // something on a quiet machine only.
    let written = touched.get("written_bytes");
    rows.push(
        TableRow::new(
            "— bytes written each, by write calls, checkpoints included",
            format!("{written:.0}"),
        )
        .wanted("≤ 100", written <= 100.0),
    );
    rows.push(TableRow::new(
        "— pages of 100 listed from their middle afterwards, 16 at a time",
        format!(
            "{}/s ({} entries and rows read each)",
            grouped(touched.get("list_pages_per_second")),
            grouped(touched.get("list_looked_at"))
        ),
    ));
}

fn fires_rows(fires: &StoreFigures, rows: &mut Vec<TableRow>) {
    let rate = fires.get("per_second");
    let reached = format!(
        "{}/s ({}; {:.0} bytes of journal each, {:.0} written; {:.0} MiB at its peak)",
        grouped(rate),
        cpu_of(rate, fires.get("cpu_micros")),
        fires.get("journal_bytes"),
        fires.get("written_bytes"),
        fires.get("memory_peak_mib")
    );
    let what = format!("load + settle of {} tasks with keys", grouped(fires.get("fires")));
    rows.push(TableRow::new(what, reached));
    let reached =
        format!("{:.0} in {:.0} runs", fires.get("history_bytes"), fires.get("history_runs"));
    rows.push(TableRow::new("— bytes of history each, index included", reached));
    for (state, place) in [("memory", "partly in memory"), ("runs", "all in runs")] {
        for kind in parts::FIRE_READS {
            let of = |figure: &str| fires.get(&format!("{state}_{kind}_{figure}"));
            let reached = format!(
                "{:.2} ms, 99 % {:.2} ms ({:.1} at most)",
                of("p50_ms"),
                of("p99_ms"),
                of("max_ms")
            );
            let what = format!("— {}, {place}", parts::fire_read(kind));
            rows.push(TableRow::new(what, reached).wanted("99 % ≤ 20 ms", of("p99_ms") <= 20.0));
        }
    }
}

fn print_json(rows: &[TableRow]) {
    let text = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let rows: Vec<String> = rows
        .iter()
        .map(|row| {
            let yes = row.yes.map_or("null".to_owned(), |yes| yes.to_string());
            format!(
                "  {{\"what\": {}, \"reached\": {}, \"wanted\": {}, \"yes\": {yes}}}",
                text(&row.what),
                text(&row.reached),
                text(&row.wanted)
            )
        })
        .collect();
    println!("[\n{}\n]", rows.join(",\n"));
}
