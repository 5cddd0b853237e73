//! Brokers on a Redis Cluster of three servers with a replica each, whose servers are killed and held and whose slots move, under the
//! load and before the judge of `faults_cluster.rs`.
//!
//! Longer: `PUNCTUAL_REDIS_CLUSTER_ROUNDS=20 cargo test --release -p punctual --test faults_redis_cluster -- --nocapture`, and
//! `tools/cluster`. What was seen stands in `docs/faults.md`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]
#![allow(clippy::print_stdout, reason = "a long run says what it did")]

#[path = "faults/again.rs"]
mod again;
mod field;
#[path = "cluster/judge.rs"]
mod judge;
#[path = "cluster/lasting.rs"]
mod lasting;
#[path = "cluster/load.rs"]
mod load;
#[path = "cluster/member.rs"]
mod member;
#[path = "cluster/names.rs"]
mod names;
#[path = "cluster/net.rs"]
mod net;
#[path = "cluster/redis.rs"]
mod redis;
#[path = "cluster/servers.rs"]
mod servers;
#[path = "cluster/stage.rs"]
mod stage;
#[path = "cluster/trial.rs"]
mod trial;
#[path = "faults/witness.rs"]
mod witness;
#[path = "faults/workers.rs"]
mod workers;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use load::{Dice, House};
use punctual_core::{PartitionId, Partitions};
use punctual_store_redis::keys;
use servers::cluster::Cluster;
use servers::wait_for;
use stage::Stage;
use trial::Trial;
use witness::pause;

const BROKERS: u8 = 3;
const PARTITIONS: u16 = 12;
/// The default of `--cluster`.
const NAME: &str = "punctual";
/// Longer than it takes a Cluster to notice, and to choose a replica.
const HELD_FOR: Duration = Duration::from_millis(3_500);

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A server that takes writes of partitions is killed, and comes back as a replica.
    ServerKilled,
    /// Slots of partitions move to another server, key by key.
    SlotsMoved,
    /// The server with the roll, the leader seat and the assignment is killed.
    RollKilled,
    /// A server is held until its replica has taken its place, and wakes up.
    ServerHeld,
    /// The slot with the roll moves, and a broker is killed.
    RollMovedAndKill,
    /// A replica takes the place of its server in good order.
    ChangedPlaces,
}

const KINDS: [Kind; 6] = [
    Kind::ServerKilled,
    Kind::SlotsMoved,
    Kind::RollKilled,
    Kind::ServerHeld,
    Kind::RollMovedAndKill,
    Kind::ChangedPlaces,
];
/// Rounds in `./test`.
const ROUNDS: u64 = 2;

type Brokers = Stage<Cluster>;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn brokers_on_a_redis_cluster_lose_nothing_when_servers_die_and_slots_move() {
    let rounds = number("PUNCTUAL_REDIS_CLUSTER_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("PUNCTUAL_CLUSTER_SEED").unwrap_or(0);
    // With less, a killed server takes with it what was acknowledged: that the judge sees it can be tried.
    let durability = std::env::var("PUNCTUAL_CLUSTER_DURABILITY");
    let durability = durability.as_deref().unwrap_or("replica");
    let only = std::env::var("PUNCTUAL_CLUSTER_KIND").ok();
    let partitions = PARTITIONS.to_string();
    let flags = ["--partitions", &partitions, "--durability", durability];
    let mut stage = Stage::over(Cluster::start(), BROKERS, &flags, None);
    let house = House::open(&stage, Ipv4Addr::LOCALHOST.into(), PARTITIONS);
    let mut dice = Dice::new(seed);
    let (mut wrongs, mut counts, mut asked) = (Vec::new(), BTreeMap::new(), 0);
    for number in 0..rounds {
        let kind = only.as_ref().map_or_else(
            || KINDS[usize::try_from(seed * ROUNDS + number).unwrap() % KINDS.len()],
            |name| KINDS.into_iter().find(|kind| format!("{kind:?}") == *name).unwrap(),
        );
        let trial = Trial::of(&mut stage, &house, (number, seed), &mut dice, |stage, dice| {
            fail(stage, dice, kind)
        });
        let [yes, no, unknown] = trial.told();
        println!(
            "round {number} {kind:?}: {} ms, {yes} acknowledged, {no} refused, {unknown} not known; {:?}; {}",
            trial.took_ms, trial.judgement.counts, trial.story,
        );
        for wrong in trial.judgement.wrongs {
            println!("  WRONG {wrong}");
            wrongs.push(format!("{number} {kind:?}: {wrong}"));
        }
        asked += trial.asked.len();
        for (what, count) in trial.judgement.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    let _: &BTreeMap<&str, u64> = &counts;
    println!("{asked} tasks: {counts:?}");
    if !wrongs.is_empty() {
        panic!("{wrongs:#?}\nwhat the brokers said: {}", stage.keep_logs().display());
    }
}

/// Out: what was done.
fn fail(stage: &mut Brokers, dice: &mut Dice, kind: Kind) -> String {
    let partition = u16::try_from(dice.roll(PARTITIONS.into())).unwrap();
    let key = own(partition);
    match kind {
        Kind::ServerKilled => kill(&mut stage.redis, &key),
        Kind::RollKilled => kill(&mut stage.redis, &keys::roll(NAME)),
        Kind::ServerHeld => hold(&stage.redis, &key),
        Kind::SlotsMoved => {
            let others = [partition, (partition + 1) % PARTITIONS, (partition + 2) % PARTITIONS];
            others.map(|partition| move_on(&stage.redis, &own(partition), dice)).join(", ")
        }
        Kind::RollMovedAndKill => {
            let broker = usize::try_from(dice.roll(BROKERS.into())).unwrap();
            stage.members[broker].kill();
            let moved = move_on(&stage.redis, &keys::roll(NAME), dice);
            stage.start_again(broker);
            moved
        }
        Kind::ChangedPlaces => {
            let cluster = &stage.redis;
            let first = cluster.serving(&key);
            let replica = cluster.replica_of(first);
            assert_eq!(cluster.servers[replica].cli(&["CLUSTER", "FAILOVER"]).trim(), "OK");
            wait_for("the replica to take over", || cluster.serves(replica, &key));
            wait_for("the old one to follow", || cluster.follows(first, replica));
            format!("{replica} in the place of {first}")
        }
    }
}

fn own(partition: u16) -> String {
    let all = Partitions::new(PARTITIONS).unwrap();
    let partition: PartitionId = all.iter().nth(partition.into()).unwrap();
    keys::PartitionKeys::new(NAME, partition).own
}

/// Kills the server that has a key; it comes back when its replica has taken its place, and follows it.
fn kill(cluster: &mut Cluster, key: &str) -> String {
    let first = cluster.serving(key);
    let replica = cluster.replica_of(first);
    cluster.servers[first].kill();
    wait_for("the replica to take over", || cluster.serves(replica, key));
    cluster.servers[first].start_again();
    wait_for("the old one to follow", || cluster.follows(first, replica));
    format!("{replica} in the place of {first}")
}

fn hold(cluster: &Cluster, key: &str) -> String {
    let first = cluster.serving(key);
    let replica = cluster.replica_of(first);
    cluster.servers[first].pause();
    pause(HELD_FOR);
    wait_for("the replica to take over", || cluster.serves(replica, key));
    cluster.servers[first].resume();
    wait_for("the old one to follow", || cluster.follows(first, replica));
    format!("{replica} in the place of {first}")
}

/// Moves the slot of a key to another server that takes writes.
fn move_on(cluster: &Cluster, key: &str, dice: &mut Dice) -> String {
    let from = cluster.serving(key);
    let takes_writes = |index: &usize| {
        let says = cluster.servers[*index].cli(&["ROLE"]);
        *index != from && says.starts_with("master") // words: allow
    };
    let others: Vec<usize> = (0..cluster.servers.len()).filter(takes_writes).collect();
    let to = others[usize::try_from(dice.roll(others.len() as u64)).unwrap()];
    cluster.move_slot(key, to);
    format!("{key} from {from} to {to}")
}
