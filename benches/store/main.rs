//! The embedded store beside what was wanted of it, and beside Redis and PostgreSQL: one table, made in one run.
//!
//! In: `--tasks N`, `--only PART,…`, `--dir DIR`, `--json`, `--no-redis`, `--no-postgres`. Out: the table, on stdout; how far it
//! is, on stderr.
//! Invariant: everything is made in a directory of its own, which is gone afterwards; every part runs in a process of its own
//! and checks what it did.
//! Next door: the work (`parts`), its tasks (`tasks`), the others (`others`), the machine (`machine`), the table (`figures`).
//!
//! `cargo run --release -p punctual-benches --bin bench-store`

mod figures;
mod machine;
mod others;
mod parts;
mod tasks;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use figures::{Figures, Row, grouped};
use parts::{BATCH, KEYS, OWNERS, Outcome};

/// Tasks that the others are given: more would not change their rates, and Redis holds them in memory.
const OTHERS_TASKS: u64 = 2_000_000;
/// Tasks that a single owner is given.
const ONE_TASKS: u64 = 1_000_000;
/// Tasks that are acknowledged beyond the last figure before the process is killed.
const ACKED_BEFORE_KILL: u64 = 200 * BATCH;
/// Disk that a task takes at most, while runs are rewritten and history is kept.
const DISK_BYTES_PER_TASK: u64 = 450;
/// And a store without tasks, the others included.
const DISK_BYTES: u64 = 4 << 30;

const USAGE: &str = "usage: bench-store [--tasks N] [--only insert,open,disk,cancel,fire,touch] [--dir DIR] \
     [--json] [--no-redis] [--no-postgres]";
const PARTS: &[&str] = &["insert", "open", "disk", "cancel", "fire", "touch"];

struct Args {
    tasks: u64,
    only: Vec<String>,
    dir: PathBuf,
    json: bool,
    redis: bool,
    postgres: bool,
    /// How the bench calls itself: one part, in this process.
    part: Option<String>,
}

impl Args {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Args> {
        let mut read = Args {
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
        // Every owner has a few batches, or there is nothing to measure.
        (known && read.tasks >= OWNERS * BATCH * 10).then_some(read)
    }

    fn wants(&self, parts: &[&str]) -> bool {
        parts.iter().any(|part| self.only.iter().any(|only| only == part))
    }
}

fn main() -> ExitCode {
    // What the store says of its checkpoints: RUST_LOG=debug
    let log = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    let Some(args) = Args::read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}\n--tasks is at least {}", OWNERS * BATCH * 10);
        return ExitCode::FAILURE;
    };
    let outcome = match &args.part {
        Some(part) => run_part(part, &args),
        None => in_own_directory(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run_part(part: &str, args: &Args) -> Outcome<()> {
    let Args { dir, tasks, .. } = args;
    let figures = match part {
        "one" => parts::insert(dir, *tasks, 1, false),
        "grow" => parts::insert(dir, *tasks, OWNERS, true),
        "insert" => parts::insert(dir, *tasks, OWNERS, false),
        "open" => parts::open(dir),
        "cancel" => parts::cancel(dir, *tasks),
        "fire" => parts::fire(dir, *tasks),
        "touch" => parts::touch(dir, *tasks),
        _ => Err(format!("no part {part}").into()),
    }?;
    println!("{figures}end 1");
    Ok(())
}

fn in_own_directory(args: &Args) -> Outcome<()> {
    let dir = args.dir.join(format!("bench-store-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let outcome = check_room(&dir, args.tasks).and_then(|()| measure_all(&dir, args));
    std::fs::remove_dir_all(&dir)?;
    let rows = outcome?;
    if args.json {
        print_json(&rows);
    }
    Ok(())
}

fn check_room(dir: &Path, tasks: u64) -> Outcome<()> {
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

/// Measures what is wanted and prints the table.
fn measure_all(dir: &Path, args: &Args) -> Outcome<Vec<Row>> {
    let load_before = machine::load();
    let mut rows = Vec::new();
    let main = dir.join("main");
    if args.wants(&["insert", "open", "disk", "cancel", "fire"]) {
        let mut insert = Insert::default();
        if args.wants(&["insert"]) {
            insert.one = part("one", &dir.join("one"), args.tasks.min(ONE_TASKS))?;
            std::fs::remove_dir_all(dir.join("one"))?;
            insert.others(dir, args);
        }
        let (grown, acked) = grown_and_killed(&main, args.tasks)?;
        if args.wants(&["insert"]) {
            insert.others(dir, args);
            insert.rows(&grown, &mut rows);
        }
        on_the_timeline(&main, args, &grown, acked, &mut rows)?;
    }
    if args.wants(&["touch"]) {
        let touched = part("touch", &dir.join("touch"), KEYS.min(args.tasks))?;
        touch_rows(&touched, &mut rows);
    }
    let load = machine::load();
    let head = format!(
        "{} tasks, payloads of {} bytes, due at random over {} days; load before {load_before}, after {load}",
        grouped(args.tasks as f64),
        tasks::PAYLOAD_BYTES,
        tasks::DAYS,
    );
    if !args.json {
        println!("\n{head}\n\n| what | reached | wanted | |\n|---|---|---|---|");
        rows.iter().for_each(|row| println!("{row}"));
    }
    Ok(rows)
}

/// Everything that is measured on the store that was grown and killed.
fn on_the_timeline(
    main: &Path,
    args: &Args,
    grown: &Figures,
    acked: u64,
    rows: &mut Vec<Row>,
) -> Outcome<()> {
    let opened = part("open", main, args.tasks)?;
    let (scheduled, inserted) = (opened.get("scheduled"), grown.get("tasks"));
    let known = inserted + acked as f64;
    if scheduled < known || scheduled > known + (OWNERS * BATCH * 8) as f64 {
        return Err(format!("{known} were acknowledged, {scheduled} are there").into());
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
        rows.push(Row::new(what, reached).wanted("≤ 1.6 ×", rest / records <= 1.6));
    }
    let mut cancelled = Figures::default();
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

/// What was inserted and not cancelled has fired, each once.
fn check_fired(grown: &Figures, cancelled: &Figures, fired: &Figures) -> Outcome<()> {
    let number = |figures: &Figures, name| {
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
fn part(name: &str, dir: &Path, tasks: u64) -> Outcome<Figures> {
    eprintln!("{name}");
    let mut child = spawn(name, dir, tasks)?;
    let mut figures = Figures::default();
    let stdout = child.stdout.take().ok_or("no pipe")?;
    for line in BufReader::new(stdout).lines() {
        figures.take_line(&line?).ok_or("a part printed what is no figure")?;
    }
    let status = child.wait()?;
    if !status.success() || figures.get("end").is_nan() {
        return Err(format!("{name} failed: {status}").into());
    }
    tell(name, &figures);
    Ok(figures)
}

/// Grows a store and kills its process while it goes on inserting. Gives the figures, and how many tasks were
/// acknowledged after them.
fn grown_and_killed(dir: &Path, tasks: u64) -> Outcome<(Figures, u64)> {
    eprintln!("grow, then kill -9");
    let mut child = spawn("grow", dir, tasks)?;
    let (mut figures, mut acked) = (Figures::default(), 0);
    let stdout = child.stdout.take().ok_or("no pipe")?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        match line.strip_prefix("acked ") {
            None => figures.take_line(&line).ok_or("a part printed what is no figure")?,
            Some(number) => acked = acked.max(number.parse()?),
        }
        // The pipe may hold more lines; so more may have been acknowledged, but not fewer.
        if acked >= ACKED_BEFORE_KILL {
            child.kill()?;
            child.wait()?;
            tell("grow", &figures);
            return Ok((figures, acked));
        }
    }
    Err(format!("grow ended by itself: {}", child.wait()?).into())
}

fn spawn(name: &str, dir: &Path, tasks: u64) -> Outcome<std::process::Child> {
    let bench = std::env::current_exe()?;
    let mut command = Command::new(bench);
    command.args(["--part", name, "--tasks", &tasks.to_string(), "--dir"]).arg(dir);
    Ok(command.stdout(Stdio::piped()).spawn()?)
}

fn tell(name: &str, figures: &Figures) {
    let all: Vec<String> = figures
        .iter()
        .filter(|(name, _)| !matches!(*name, "end" | "sum"))
        .map(|(name, value)| format!("{name}={value:.2}"))
        .collect();
    eprintln!("  {name}: {}", all.join(" "));
}

/// CPU of each, and how much of the machine that was: on a busy one, cores are missing, not speed.
fn cpu_of(rate: f64, micros: f64) -> String {
    format!("{micros:.2} µs CPU each, {:.1} cores", rate * micros / 1e6)
}

/// Insert, and the others beside it: before and after, so that a change of load is seen.
#[derive(Default)]
struct Insert {
    one: Figures,
    redis: Vec<others::Reached>,
    postgres: Vec<others::Reached>,
}

impl Insert {
    fn others(&mut self, dir: &Path, args: &Args) {
        type Other = fn(&Path, u64) -> Outcome<others::Reached>;
        let tasks = args.tasks.min(OTHERS_TASKS);
        for (name, wanted, other, reached) in [
            ("redis", args.redis, others::redis as Other, &mut self.redis),
            ("postgres", args.postgres, others::postgres, &mut self.postgres),
        ] {
            if !wanted {
                continue;
            }
            eprintln!("{name}");
            match other(dir, tasks) {
                Ok(figures) => {
                    eprintln!("  {name}: {}/s", grouped(figures.per_second));
                    reached.push(figures);
                }
                Err(error) => eprintln!("  {name} is left out: {error}"),
            }
            // The next instance begins with nothing.
            drop(std::fs::remove_dir_all(dir.join(name)));
        }
    }

    fn rows(&self, grown: &Figures, rows: &mut Vec<Row>) {
        let rate = grown.get("per_second");
        let both = |runs: &[others::Reached]| {
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
            Row::new(what, format!("{}/s", grouped(rate))).wanted("≥ 300,000/s", rate >= 3e5),
        );
        let (cpu, making) = (grown.get("cpu_micros"), grown.get("making_cpu_micros"));
        let reached = format!(
            "{:.2} µs ({cpu:.2} with making the task; {:.1} cores; the host took {:.1} % of the time)",
            cpu - making,
            rate * cpu / 1e6,
            grown.get("stolen_percent")
        );
        rows.push(Row::new("— CPU each", reached).wanted("≤ 2 µs", cpu - making <= 2.0));
        if !self.redis.is_empty() {
            let (rates, mean) = both(&self.redis);
            let cpu = self.redis[0].cpu_micros;
            let what =
                "— beside Redis `appendfsync always`, ZADD, pipelines of 512, 16 connections";
            let reached = format!("{:.2} × (Redis: {rates}; {cpu:.2} µs CPU each)", rate / mean);
            rows.push(Row::new(what, reached).wanted("≥ 1.5 ×", rate / mean >= 1.5));
        }
        if !self.postgres.is_empty() {
            let (rates, mean) = both(&self.postgres);
            let what =
                "— beside PostgreSQL, inserts of 500 rows, synchronous commit, 16 connections";
            rows.push(Row::new(what, format!("{:.2} × (PostgreSQL: {rates})", rate / mean)));
        }
        let one = &self.one;
        let what = format!("durable insert, 1 owner, {} tasks", grouped(one.get("tasks")));
        let reached = format!(
            "{}/s, {:.2} µs CPU each, answered in {:.1} ms (median)",
            grouped(one.get("per_second")),
            one.get("cpu_micros") - one.get("making_cpu_micros"),
            one.get("wait_p50_ms")
        );
        rows.push(Row::new(what, reached));
        growth_rows(grown, rows);
    }
}

fn growth_rows(grown: &Figures, rows: &mut Vec<Row>) {
    let (first, last) = (grown.get("per_second_first"), grown.get("per_second_last"));
    let window = grouped(grown.get("window"));
    let tenth = |tenth| grown.get(&format!("per_second_tenth_{tenth}")) / 1e3;
    let tenths: Vec<String> = (1..=parts::TENTHS).map(|at| format!("{:.0}", tenth(at))).collect();
    rows.push(
        Row::new(
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
        Row::new(
            "— longest wait for an answer",
            format!(
                "{stall:.0} ms ({:.0} over 250 ms; median {:.1}, 99 % {:.1} ms; nobody answered for {:.0} ms, \
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
    rows.push(Row::new(what, reached).wanted("≤ 512 MiB", memory <= 512.0));
}

fn open_rows(tasks: u64, opened: &Figures, rows: &mut Vec<Row>) {
    let seconds = opened.get("first_seconds");
    let wanted = if tasks <= 10_000_000 { 1.5 } else { 2.5 };
    let reached = format!(
        "{seconds:.2} s ({:.2} s for all {OWNERS} partitions; {:.0} commits replayed)",
        opened.get("all_first_seconds"),
        opened.get("replayed")
    );
    let what =
        format!("open after kill -9 at {}, until the first due is loaded", grouped(tasks as f64));
    rows.push(Row::new(what, reached).wanted(format!("≤ {wanted} s"), seconds <= wanted));
}

fn cancel_rows(cancelled: &Figures, rows: &mut Vec<Row>) {
    for (name, what) in [
        ("spread", "cancel by id (get, settle), batches of 1,000, from everywhere"),
        ("young", "— the same, the youngest tasks"),
    ] {
        let of = |figure: &str| cancelled.get(&format!("{name}_{figure}"));
        let rate = of("per_second");
        let reached = format!(
            "{}/s ({}; {:.0} % of the time is get)",
            grouped(rate),
            cpu_of(rate, of("cpu_micros")),
            of("get_share") * 100.0
        );
        rows.push(Row::new(what, reached).wanted("≥ 300,000/s", rate >= 3e5));
    }
}

fn fire_rows(fired: &Figures, rows: &mut Vec<Row>) {
    let rate = fired.get("per_second");
    let reached = format!(
        "{}/s ({}; {:.0} % of the time is load; {:.0} MiB at its peak)",
        grouped(rate),
        cpu_of(rate, fired.get("cpu_micros")),
        fired.get("load_share") * 100.0,
        fired.get("memory_peak_mib")
    );
    let what = format!("load + settle, batches of {:.0}", fired.get("per_batch"));
    rows.push(Row::new(what, reached).wanted("≥ 400,000/s", rate >= 4e5));
}

fn swept_rows(records: f64, fired: &Figures, rows: &mut Vec<Row>) {
    let (swept, before) = (fired.get("closed_disk_bytes"), fired.get("fired_disk_bytes"));
    let reached = format!(
        "{:.1} % ({} MB; {:.1} % before history was swept)",
        swept / records * 100.0,
        grouped(swept / 1e6),
        before / records * 100.0
    );
    let what = "disk after everything fired, history past its age swept, checkpoint, close";
    rows.push(Row::new(what, reached).wanted("≤ 5 %", swept / records <= 0.05));
}

fn touch_rows(touched: &Figures, rows: &mut Vec<Row>) {
    let rate = touched.get("per_second");
    let reached = format!(
        "{}/s ({}; {:.0} % of the time is find; {:.0} MiB at its peak)",
        grouped(rate),
        cpu_of(rate, touched.get("cpu_micros")),
        touched.get("find_share") * 100.0,
        touched.get("memory_peak_mib")
    );
    let what = format!("touch by key, batches of 1,000, {} keys", grouped(touched.get("keys")));
    rows.push(Row::new(what, reached).wanted("≥ 200,000/s", rate >= 2e5));
    // What the disk took is in the figures on stderr: it is from everybody, and so says something on a quiet machine only.
    let written = touched.get("written_bytes");
    rows.push(
        Row::new(
            "— bytes written each, by write calls, checkpoints included",
            format!("{written:.0}"),
        )
        .wanted("≤ 100", written <= 100.0),
    );
    rows.push(Row::new(
        "— pages of 100 listed from their middle afterwards, 16 at a time",
        format!(
            "{}/s ({} entries and rows looked at each)",
            grouped(touched.get("list_pages_per_second")),
            grouped(touched.get("list_looked_at"))
        ),
    ));
}

fn print_json(rows: &[Row]) {
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
