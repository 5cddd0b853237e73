//! TestCluster<RedisCluster> on a Redis RedisCluster of three servers with a replica each, whose servers are killed and held and whose slots move, under the
//! load and before the judge of `faults_cluster.rs`.
//!
//! Longer: `PUNCTUAL_REDIS_CLUSTER_ROUNDS=20 cargo test --release -p punctual --test faults_redis_cluster -- --nocapture`, and
//! `tools/redis`. What was seen stands in `docs/faults.md`.

use crate::cluster::faulted_load::FaultedLoad;
use crate::cluster::load::LoadReceivers;
use punctual_test_support::redis::RedisCluster;
use punctual_test_support::{RandomNumbers, TestCluster, pause, wait_for};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use punctual_core::{PartitionId, Partitions};
use punctual_store_redis::keys;

const BROKERS: u8 = 3;
const PARTITIONS: u16 = 12;
/// The default of `--redis`.
const NAME: &str = "punctual";
/// Longer than it takes a RedisCluster to notice, and to choose a replica.
const HELD_FOR: Duration = Duration::from_millis(3_500);

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RedisFaultKind {
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

const KINDS: [RedisFaultKind; 6] = [
    RedisFaultKind::ServerKilled,
    RedisFaultKind::SlotsMoved,
    RedisFaultKind::RollKilled,
    RedisFaultKind::ServerHeld,
    RedisFaultKind::RollMovedAndKill,
    RedisFaultKind::ChangedPlaces,
];
/// Rounds in `./test`.
const ROUNDS: u64 = 2;

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
    let mut cluster = TestCluster::over(RedisCluster::start(), BROKERS, &flags, None);
    let receivers = LoadReceivers::start(&cluster, Ipv4Addr::LOCALHOST.into(), PARTITIONS);
    let mut random = RandomNumbers::new(seed);
    let (mut violations, mut counts, mut asked) = (Vec::new(), BTreeMap::new(), 0);
    for number in 0..rounds {
        let kind = only.as_ref().map_or_else(
            || KINDS[usize::try_from(seed * ROUNDS + number).unwrap() % KINDS.len()],
            |name| KINDS.into_iter().find(|kind| format!("{kind:?}") == *name).unwrap(),
        );
        let faulted = FaultedLoad::of(
            &mut cluster,
            &receivers,
            (number, seed),
            &mut random,
            |cluster, random| fail(cluster, random, kind),
        );
        let [yes, no, unknown] = faulted.outcome_of();
        println!(
            "round {number} {kind:?}: {} ms, {yes} acknowledged, {no} refused, {unknown} not known; {:?}; {}",
            faulted.took_ms, faulted.findings.counts, faulted.report,
        );
        for wrong in faulted.findings.violations {
            println!("  WRONG {wrong}");
            violations.push(format!("{number} {kind:?}: {wrong}"));
        }
        asked += faulted.asked.len();
        for (what, count) in faulted.findings.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    let _: &BTreeMap<&str, u64> = &counts;
    println!("{asked} tasks: {counts:?}");
    if !violations.is_empty() {
        panic!("{violations:#?}\nwhat the brokers said: {}", cluster.keep_logs().display());
    }
}

/// Out: what was done.
fn fail(
    cluster: &mut TestCluster<RedisCluster>,
    random: &mut RandomNumbers,
    kind: RedisFaultKind,
) -> String {
    let partition = u16::try_from(random.below(PARTITIONS.into())).unwrap();
    let key = own(partition);
    match kind {
        RedisFaultKind::ServerKilled => kill(&mut cluster.redis, &key),
        RedisFaultKind::RollKilled => kill(&mut cluster.redis, &keys::roll(NAME)),
        RedisFaultKind::ServerHeld => hold(&cluster.redis, &key),
        RedisFaultKind::SlotsMoved => {
            let others = [partition, (partition + 1) % PARTITIONS, (partition + 2) % PARTITIONS];
            others.map(|partition| move_on(&cluster.redis, &own(partition), random)).join(", ")
        }
        RedisFaultKind::RollMovedAndKill => {
            let broker = usize::try_from(random.below(BROKERS.into())).unwrap();
            cluster.brokers[broker].kill();
            let moved = move_on(&cluster.redis, &keys::roll(NAME), random);
            cluster.start_again(broker);
            moved
        }
        RedisFaultKind::ChangedPlaces => {
            let redis = &cluster.redis;
            let first = redis.serving(&key);
            let replica = redis.replica_of(first);
            assert_eq!(redis.servers[replica].cli(&["CLUSTER", "FAILOVER"]).trim(), "OK");
            wait_for("the replica to take over", || redis.serves(replica, &key));
            wait_for("the old one to follow", || redis.follows(first, replica));
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
fn kill(redis: &mut RedisCluster, key: &str) -> String {
    let first = redis.serving(key);
    let replica = redis.replica_of(first);
    redis.servers[first].kill();
    wait_for("the replica to take over", || redis.serves(replica, key));
    redis.servers[first].start_again();
    wait_for("the old one to follow", || redis.follows(first, replica));
    format!("{replica} in the place of {first}")
}

fn hold(redis: &RedisCluster, key: &str) -> String {
    let first = redis.serving(key);
    let replica = redis.replica_of(first);
    redis.servers[first].suspend();
    pause(HELD_FOR);
    wait_for("the replica to take over", || redis.serves(replica, key));
    redis.servers[first].resume();
    wait_for("the old one to follow", || redis.follows(first, replica));
    format!("{replica} in the place of {first}")
}

/// Moves the slot of a key to another server that takes writes.
fn move_on(redis: &RedisCluster, key: &str, random: &mut RandomNumbers) -> String {
    let from = redis.serving(key);
    let takes_writes = |index: &usize| {
        let says = redis.servers[*index].cli(&["ROLE"]);
        *index != from && says.starts_with("master") // words: allow
    };
    let others: Vec<usize> = (0..redis.servers.len()).filter(takes_writes).collect();
    let to = others[usize::try_from(random.below(others.len() as u64)).unwrap()];
    redis.move_slot(key, to);
    format!("{key} from {from} to {to}")
}
