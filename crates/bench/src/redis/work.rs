//! The work of a row as commands of Redis.
//!
//! The due times are a sorted set by name, the bodies a hash. All commands of a batch are written
//! at once and without a transaction, which a real service needs (`MULTI`, or a script), because
//! a crash between two commands leaves half a task. [`RedisCommands`] says how many commands a
//! batch has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};

use super::RespConnection;
use crate::clock::{millis, pause};
use crate::connection::{PAYLOAD_BYTES, number_of, payload};
use crate::peer::{CLAIM_TASKS_MAX, PeerTask, PeerVerb};

/// Due times in milliseconds, by name.
const TASKS: &[u8] = b"tasks";
/// Bodies by name.
const BODIES: &[u8] = b"bodies";
/// Ends of leases, by name, of tasks that a worker has claimed and not acked.
const CLAIMED: &[u8] = b"claimed";

/// Moves tasks that are due to the claimed ones, and returns their names and bodies.
const CLAIM: &[u8] = b"\
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due == 0 then return {} end
redis.call('ZREM', KEYS[1], unpack(due))
local claimed = {}
for i, name in ipairs(due) do
  claimed[2 * i - 1] = ARGV[3]
  claimed[2 * i] = name
end
redis.call('ZADD', KEYS[3], unpack(claimed))
return {due, redis.call('HMGET', KEYS[2], unpack(due))}";
const LEASE_MS: u64 = 30_000;

/// How a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedisCommands {
    /// Commands for each task: the replies tell what happened to it, as those of a broker do.
    Each,
    /// One command with many members: faster, and the reply is only a count.
    Bulk,
}

/// Where batches are sent, and how they are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RedisTarget {
    pub(crate) port: u16,
    pub(crate) commands: RedisCommands,
}

impl RedisTarget {
    /// Splits a batch into the tasks of one command.
    fn split(self, tasks: &[PeerTask]) -> impl Iterator<Item = &[PeerTask]> {
        tasks.chunks(match self.commands {
            RedisCommands::Each => 1,
            RedisCommands::Bulk => tasks.len().max(1),
        })
    }
}

/// Adds the commands for these tasks.
fn write(verb: PeerVerb, connection: &mut RespConnection, tasks: &[PeerTask]) {
    let names = || tasks.iter().map(|task| task.name.as_bytes());
    match verb {
        PeerVerb::Schedule => {
            connection.command(2 + 2 * tasks.len()).word(b"ZADD").word(TASKS);
            scores(connection, tasks);
            connection.command(2 + 2 * tasks.len()).word(b"HSET").word(BODIES);
            for task in tasks {
                connection.word(task.name.as_bytes()).word(&payload(task.number));
            }
        }
        PeerVerb::Touch => {
            connection.command(4 + 2 * tasks.len()).word(b"ZADD").word(TASKS);
            connection.word(b"XX").word(b"CH");
            scores(connection, tasks);
        }
        PeerVerb::Cancel => {
            for (command, key) in [(b"ZREM", TASKS), (b"HDEL", BODIES)] {
                connection.command(2 + tasks.len()).word(command).word(key);
                names().for_each(|name| _ = connection.word(name));
            }
        }
    }
}

/// Reads the replies for this many tasks, and checks that all of them were there.
async fn check(verb: PeerVerb, connection: &mut RespConnection, tasks: u64) -> anyhow::Result<()> {
    match verb {
        PeerVerb::Schedule | PeerVerb::Cancel => {
            for _ in 0..2 {
                let done = connection.number().await?;
                ensure!(done == tasks, "{verb:?}: Redis has done {done} of {tasks}");
            }
        }
        // A task that was moved to the same millisecond does not count.
        PeerVerb::Touch => {
            let moved = connection.number().await?;
            ensure!(moved <= tasks, "{verb:?}: Redis has moved {moved} of {tasks}");
        }
    }
    Ok(())
}

fn scores(connection: &mut RespConnection, tasks: &[PeerTask]) {
    for task in tasks {
        connection.word(task.due_ms.to_string().as_bytes()).word(task.name.as_bytes());
    }
}

/// The Redis side of [`PeerTarget::send`](crate::peer::PeerTarget::send).
pub(crate) async fn send(
    target: RedisTarget,
    verb: PeerVerb,
    in_flight: usize,
    mut next: impl FnMut() -> Option<Vec<PeerTask>>,
) -> anyhow::Result<u64> {
    let mut connection = RespConnection::connect(target.port).await?;
    let mut unanswered: VecDeque<Vec<PeerTask>> = VecDeque::new();
    let mut done = 0;
    loop {
        let batch = next();
        for tasks in batch.iter().flat_map(|batch| target.split(batch)) {
            write(verb, &mut connection, tasks);
        }
        let keep = if batch.is_some() { in_flight.max(1) - 1 } else { 0 };
        while unanswered.len() > keep {
            let Some(batch) = unanswered.pop_front() else { break };
            for tasks in target.split(&batch) {
                check(verb, &mut connection, tasks.len() as u64).await?;
            }
            done += batch.len() as u64;
        }
        let Some(batch) = batch else { return Ok(done) };
        connection.send().await?;
        unanswered.push_back(batch);
    }
}

/// The Redis side of [`PeerTarget::drain`](crate::peer::PeerTarget::drain).
pub(crate) async fn drain(port: u16, count: u64, received: Arc<AtomicU64>) -> anyhow::Result<u64> {
    let mut connection = RespConnection::connect(port).await?;
    connection.command(3).word(b"SCRIPT").word(b"LOAD").word(CLAIM);
    connection.send().await?;
    let script = connection.texts().await?.pop().context("SCRIPT LOAD has no answer")?;
    let mut claimed: Vec<Vec<u8>> = Vec::new();
    let mut done = 0;
    loop {
        for (command, key) in [(b"ZREM", CLAIMED), (b"HDEL", BODIES)] {
            if !claimed.is_empty() {
                connection.command(2 + claimed.len()).word(command).word(key);
                claimed.iter().for_each(|name| _ = connection.word(name));
            }
        }
        let now = millis();
        connection.command(9).word(b"EVALSHA").word(&script).word(b"3");
        connection.word(TASKS).word(BODIES).word(CLAIMED);
        for argument in [now, CLAIM_TASKS_MAX as u64, now + LEASE_MS] {
            connection.word(argument.to_string().as_bytes());
        }
        connection.send().await?;
        if !claimed.is_empty() {
            for _ in 0..2 {
                let acked = connection.number().await?;
                ensure!(acked == claimed.len() as u64, "Redis has acked {acked} tasks");
            }
        }
        done += claimed.len() as u64;
        let mut names = connection.texts().await?;
        let bodies = names.split_off(names.len() / 2);
        for body in &bodies {
            ensure!(body.len() == PAYLOAD_BYTES, "a body has {} bytes", body.len());
            number_of(body).context("an unknown payload")?;
        }
        let all = received.fetch_add(bodies.len() as u64, Ordering::Relaxed) + bodies.len() as u64;
        match (bodies.is_empty(), all >= count) {
            (true, true) => return Ok(done),
            (true, false) => pause(1).await,
            (false, _) => {}
        }
        claimed = names;
    }
}
