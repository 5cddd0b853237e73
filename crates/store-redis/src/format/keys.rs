//! Keys: the names of everything in Redis. No other file spells them.
//!
//! All keys of a partition share one hash tag, so that a Redis Cluster keeps a partition on one
//! server and spreads partitions over its servers. The values are defined in `codec`.
//!
//! An ACL user needs the patterns `~{NAME}:*` and `~{NAME.*`.

use punctual_core::{PartitionId, Seat};

/// The longest cluster name in bytes: the name is in every key, and every key is in memory.
pub const CLUSTER_BYTES_MAX: usize = 64;

/// Returns the key of what is fixed at the first start: format, number of partitions, and the
/// secret that brokers share.
#[must_use]
pub fn meta(cluster: &str) -> String {
    format!("{{{cluster}}}:meta")
}

/// Returns the key of the lease of a seat: a hash of `epoch`, `token`, `broker`, `until`, `expires`
/// and, for a partition, `batch` and `repair`.
#[must_use]
pub fn own(cluster: &str, seat: Seat) -> String {
    match seat {
        Seat::Leader => format!("{{{cluster}}}:leader"),
        Seat::Partition(partition) => PartitionKeys::new(cluster, partition).own,
    }
}

/// Returns the key of the members: a hash from broker to the time of its heartbeat, the time at
/// which the heartbeat expires (both in milliseconds by the clock of Redis, each followed by a
/// space) and the heartbeat.
#[must_use]
pub fn roll(cluster: &str) -> String {
    format!("{{{cluster}}}:roll")
}

/// Returns the key of the assignment that the leader proposed last.
#[must_use]
pub fn assignment(cluster: &str) -> String {
    format!("{{{cluster}}}:assignment")
}

/// The keys of one partition.
#[derive(Debug, Clone)]
pub struct PartitionKeys {
    /// The lease of the partition. See [`own`].
    pub own: String,
    /// Scheduled tasks: a sorted set of ids by `fire_at`.
    pub due: String,
    /// Tasks without a due time, paused or watches that have fired: a sorted set like `due`.
    pub paused: String,
    /// Living tasks: a hash from id to `fire_at` and body. For a task that ended with its first
    /// fire, the value is the record of that fire.
    pub tasks: String,
    /// Postponements since the body was written: a hash from id to `fire_at`, version and
    /// `updated_at`.
    pub late: String,
    /// Tasks with keys: a hash from namespace and key to id and head.
    pub names: String,
    /// Dead letters: a hash from fire to dead letter.
    pub letters: String,
    /// The order of dead letters: a sorted set of namespace and fire, by bytes.
    pub dead: String,
    /// The same members by the time of death.
    pub dead_ages: String,
    /// Records of all other ended fires: a hash from fire to record.
    pub history: String,
    /// Fires whose nominal time is not in the id of their task: a sorted set by bytes.
    pub fires: String,
    /// Pieces of history, each with the groups of fires of one batch: a sorted set by the latest
    /// end of a fire.
    pub ages: String,
    /// Groups of ended fires, each with the fires of one batch that have the same namespace and
    /// end: a sorted set by bytes, in which the groups of a namespace and an end are ordered by
    /// time.
    pub ends: String,
    /// Ended fires of tasks with keys: a sorted set of namespace, key, end time and fire, by bytes.
    pub keyed: String,
    /// Counts by namespace and state, and the size of history in bytes: a hash of numbers.
    pub counts: String,
    /// Namespaces that have or had a count: a sorted set of names, by bytes.
    pub namespaces: String,
    /// Whether everything below is counted: a hash of `epoch`, the epoch whose owner keeps the
    /// counts, `at`, up to where an earlier version's tasks were counted (absent if all are), and
    /// `folds`, how often the log was folded.
    pub counted: String,
    /// Due counts: a sorted set of namespace, hour and counts, by bytes.
    pub due_hours: String,
    /// Differences of due counts that are not in `due_hours` yet: a string.
    pub due_log: String,
    /// Groups of dead letters: a hash; `letter_groups.lua` has its fields.
    pub groups: String,
    /// The group that counts a dead letter: a hash from fire to the name of the group.
    pub grouped: String,
    /// The start of the keys of series; see [`Self::series`].
    pub series_prefix: String,
}

impl PartitionKeys {
    /// Returns the keys of a partition.
    #[must_use]
    pub fn new(cluster: &str, partition: PartitionId) -> Self {
        let tag = format!("{{{cluster}.{}}}", partition.get());
        let key = |name: &str| format!("{tag}:{name}");
        Self {
            own: key("own"),
            due: key("due"),
            paused: key("paused"),
            tasks: key("tasks"),
            late: key("late"),
            names: key("names"),
            letters: key("letters"),
            dead: key("dead"),
            dead_ages: key("dead-ages"),
            history: key("history"),
            fires: key("fires"),
            ages: key("ages"),
            ends: key("ends"),
            keyed: key("keyed"),
            counts: key("counts"),
            namespaces: key("namespaces"),
            counted: key("counted"),
            due_hours: key("due-hours"),
            due_log: key("due-log"),
            groups: key("groups"),
            grouped: key("grouped"),
            series_prefix: key("series:"),
        }
    }

    /// Returns the key of the series of a namespace, scheduled or paused: a sorted set like `due`.
    #[must_use]
    pub fn series(&self, namespace: &str) -> String {
        format!("{}{namespace}", self.series_prefix)
    }

    /// Returns all keys but those of series, in the order of `KEYS` in `apply.lua`.
    #[must_use]
    pub fn all(&self) -> [&str; 21] {
        [
            &self.own,
            &self.due,
            &self.paused,
            &self.tasks,
            &self.late,
            &self.names,
            &self.letters,
            &self.dead,
            &self.dead_ages,
            &self.history,
            &self.fires,
            &self.ages,
            &self.counts,
            &self.ends,
            &self.keyed,
            &self.namespaces,
            &self.counted,
            &self.due_hours,
            &self.due_log,
            &self.groups,
            &self.grouped,
        ]
    }

    /// Returns all keys with their types, as `TYPE` returns them.
    pub(crate) fn types(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let tasks_and_letters = [&self.due, &self.paused, &self.dead, &self.dead_ages];
        let ended_fires = [&self.fires, &self.ages, &self.ends, &self.keyed];
        let counts = [&self.namespaces, &self.due_hours];
        let sets = [&tasks_and_letters[..], &ended_fires, &counts].concat();
        let type_of = move |key: &str| match key {
            key if sets.iter().any(|set| *set == key) => "zset",
            key if *key == self.due_log => "string",
            _ => "hash",
        };
        self.all().into_iter().map(move |key| (key, type_of(key)))
    }
}

/// Returns why a cluster cannot have this name, if it cannot: names are parts of hash tags and ACL
/// patterns.
#[must_use]
pub fn fault_of_name(cluster: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if cluster.is_empty() || cluster.len() > CLUSTER_BYTES_MAX {
        return Some("must have 1 to 64 characters");
    }
    (!cluster.bytes().all(plain)).then_some("may contain only letters, digits, - and _")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_keys_of_a_partition_share_its_hash_tag_and_differ_otherwise() {
        let partition = PartitionId::new(17).unwrap();
        let keys = PartitionKeys::new("shop", partition);
        for key in keys.all() {
            assert!(key.starts_with("{shop.17}:"), "{key}");
        }
        assert_eq!(keys.all().into_iter().collect::<BTreeSet<_>>().len(), 21);
        assert_eq!(keys.types().filter(|(_, kind)| *kind == "zset").count(), 10);
        assert_eq!(keys.series("eu"), "{shop.17}:series:eu");
        assert_eq!(own("shop", Seat::Partition(partition)), keys.own);
        assert_eq!(own("shop", Seat::Leader), "{shop}:leader");
        assert_eq!(meta("shop"), "{shop}:meta");
        // The heartbeat script uses these together with the leader seat.
        assert_eq!([roll("shop"), assignment("shop")], ["{shop}:roll", "{shop}:assignment"]);
    }

    #[test]
    fn a_name_that_could_break_out_of_the_hash_tag_is_refused() {
        for (name, good) in [
            ("shop", true),
            ("shop-2_b", true),
            ("", false),
            ("a.1", false),
            ("a}", false),
            ("a b", false),
            (&"a".repeat(64), true),
            (&"a".repeat(65), false),
        ] {
            assert_eq!(fault_of_name(name).is_none(), good, "{name}");
        }
    }
}
