//! Faults of a Redis Cluster under brokers: three servers with a replica each are killed and
//! suspended, and slots move. The load and the checks are those of `cluster`.
//!
//! Longer: `PUNCTUAL_REDIS_CLUSTER_ROUNDS=20 cargo test --release -p punctual --test faults --
//! --nocapture redis_cluster::`, and `tools/cluster`. The results are in `docs/lab/faults.md`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use punctual_core::{PartitionId, Partitions};
use punctual_store_redis::keys;
use punctual_test_support::redis::RedisCluster;
use punctual_test_support::{RandomNumbers, TestCluster, pause, wait_for};

use crate::cluster::faulted_load::FaultedLoad;
use crate::cluster::load::LoadReceivers;
use crate::cluster::number_of;

const BROKERS: u8 = 3;
const PARTITIONS: u16 = 12;
/// The default of `--cluster`.
const NAME: &str = "punctual";
/// Longer than a Cluster takes to notice that a server is gone, and to promote its replica.
const SUSPENDED_FOR: Duration = Duration::from_millis(3_500);

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RedisFaultKind {
    /// The server of a partition is killed, and comes back as a replica.
    ServerKilled,
    /// Slots of partitions move to another server, key by key.
    SlotsMoved,
    /// The server with the membership, the leader's lease and the topology is killed.
    MembershipKilled,
    /// A server is suspended until its replica has taken over, and resumes.
    ServerSuspended,
    /// The slot with the membership moves, and a broker is killed.
    MembershipMovedAndKill,
    /// A replica takes over by CLUSTER FAILOVER.
    FailedOver,
}

const KINDS: [RedisFaultKind; 6] = [
    RedisFaultKind::ServerKilled,
    RedisFaultKind::SlotsMoved,
    RedisFaultKind::MembershipKilled,
    RedisFaultKind::ServerSuspended,
    RedisFaultKind::MembershipMovedAndKill,
    RedisFaultKind::FailedOver,
];
/// Rounds in `./test`.
const ROUNDS: u64 = 2;

#[test]
fn brokers_on_a_redis_cluster_lose_nothing_when_servers_die_and_slots_move() {
    let rounds = number_of("PUNCTUAL_REDIS_CLUSTER_ROUNDS").unwrap_or(ROUNDS);
    let seed = number_of("PUNCTUAL_CLUSTER_SEED").unwrap_or(0);
    // With a lower durability a killed server loses acknowledged tasks, and the checks must fail.
    let durability = std::env::var("PUNCTUAL_CLUSTER_DURABILITY");
    let durability = durability.as_deref().unwrap_or("replica");
    let only = std::env::var("PUNCTUAL_CLUSTER_KIND").ok();
    let partitions = PARTITIONS.to_string();
    let flags = ["--partitions", &partitions, "--durability", durability];
    let mut cluster = TestCluster::over(RedisCluster::start(), BROKERS, &flags, None);
    let receivers = LoadReceivers::start(&cluster, Ipv4Addr::LOCALHOST.into(), PARTITIONS);
    let mut random = RandomNumbers::new(seed);
    let (mut violations, mut counts, mut tasks) = (Vec::new(), BTreeMap::new(), 0);
    for number in 0..rounds {
        let kind = only.as_ref().map_or_else(
            || KINDS[usize::try_from(seed * ROUNDS + number).unwrap() % KINDS.len()],
            |name| KINDS.into_iter().find(|kind| format!("{kind:?}") == *name).unwrap(),
        );
        let faulted = FaultedLoad::run(
            &mut cluster,
            &receivers,
            (number, seed),
            &mut random,
            |cluster, random| inject(cluster, random, kind),
        );
        let [acknowledged, refused, open] = faulted.outcomes();
        println!(
            "round {number} {kind:?}: {} ms, {acknowledged} acknowledged, {refused} refused, \
             {open} open; {:?}; {}",
            faulted.took_ms, faulted.findings.counts, faulted.report,
        );
        for violation in faulted.findings.violations {
            println!("  VIOLATION {violation}");
            violations.push(format!("{number} {kind:?}: {violation}"));
        }
        tasks += faulted.tasks.len();
        for (what, count) in faulted.findings.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    let _: &BTreeMap<&str, u64> = &counts;
    println!("{tasks} tasks: {counts:?}");
    if !violations.is_empty() {
        panic!("{violations:#?}\nlogs of the brokers: {}", cluster.keep_logs().display());
    }
}

/// Injects a fault. Returns what was done.
fn inject(
    cluster: &mut TestCluster<RedisCluster>,
    random: &mut RandomNumbers,
    kind: RedisFaultKind,
) -> String {
    let partition = u16::try_from(random.below(PARTITIONS.into())).unwrap();
    let key = partition_key(partition);
    match kind {
        RedisFaultKind::ServerKilled => kill(&mut cluster.redis, &key),
        RedisFaultKind::MembershipKilled => kill(&mut cluster.redis, &keys::roll(NAME)),
        RedisFaultKind::ServerSuspended => suspend(&cluster.redis, &key),
        RedisFaultKind::SlotsMoved => {
            let others = [partition, (partition + 1) % PARTITIONS, (partition + 2) % PARTITIONS];
            others
                .map(|partition| move_slot(&cluster.redis, &partition_key(partition), random))
                .join(", ")
        }
        RedisFaultKind::MembershipMovedAndKill => {
            let broker = random.index(BROKERS.into());
            cluster.brokers[broker].kill();
            let moved = move_slot(&cluster.redis, &keys::roll(NAME), random);
            cluster.start_again(broker);
            moved
        }
        RedisFaultKind::FailedOver => {
            let redis = &cluster.redis;
            let first = redis.serving(&key);
            let replica = redis.replica_of(first);
            assert_eq!(redis.servers[replica].cli(&["CLUSTER", "FAILOVER"]).trim(), "OK");
            wait_for("the replica to take over", || redis.serves(replica, &key));
            wait_for("the old server to follow", || redis.follows(first, replica));
            format!("{replica} replaces {first}")
        }
    }
}

fn partition_key(partition: u16) -> String {
    let all = Partitions::new(PARTITIONS).unwrap();
    let partition: PartitionId = all.iter().nth(partition.into()).unwrap();
    keys::PartitionKeys::new(NAME, partition).own
}

/// Kills the server of a key, and starts it again as a replica after the failover.
fn kill(redis: &mut RedisCluster, key: &str) -> String {
    let first = redis.serving(key);
    let replica = redis.replica_of(first);
    redis.servers[first].kill();
    wait_for("the replica to take over", || redis.serves(replica, key));
    redis.servers[first].start_again();
    wait_for("the old server to follow", || redis.follows(first, replica));
    format!("{replica} replaces {first}")
}

fn suspend(redis: &RedisCluster, key: &str) -> String {
    let first = redis.serving(key);
    let replica = redis.replica_of(first);
    redis.servers[first].suspend();
    pause(SUSPENDED_FOR);
    wait_for("the replica to take over", || redis.serves(replica, key));
    redis.servers[first].resume();
    wait_for("the old server to follow", || redis.follows(first, replica));
    format!("{replica} replaces {first}")
}

/// Moves the slot of a key to another server that takes writes.
fn move_slot(redis: &RedisCluster, key: &str, random: &mut RandomNumbers) -> String {
    let from = redis.serving(key);
    let takes_writes = |index: &usize| {
        let role = redis.servers[*index].cli(&["ROLE"]);
        *index != from && role.starts_with("master") // words: allow
    };
    let others: Vec<usize> = (0..redis.servers.len()).filter(takes_writes).collect();
    let to = others[random.index(others.len())];
    redis.move_slot(key, to);
    format!("{key} from {from} to {to}")
}
