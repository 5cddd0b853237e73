//! PartitionKeys: the only place that spells the names of what is kept in Redis.
//!
//! In: the name of a cluster and a partition. Out: the partition's keys, all behind one hash tag, so that a Redis
//! Cluster keeps a partition whole on one server and spreads partitions over its servers.
//! Not here: what stands in the values (`codec`).
//!
//! An ACL user needs these patterns: `~{NAME}:*` and `~{NAME.*`.

use punctual_core::{PartitionId, Seat};

/// Bytes of a cluster's name: it is in every key, and every key is in memory.
pub const CLUSTER_BYTES_MAX: usize = 64;

/// Fixed at first start: format, number of partitions, and the secret by which brokers know each other.
#[must_use]
pub fn meta(cluster: &str) -> String {
    format!("{{{cluster}}}:meta")
}

/// Who holds a seat: a hash of `epoch`, `token`, `broker`, `until`, `expires` and, for a partition, `batch`.
#[must_use]
pub fn own(cluster: &str, seat: Seat) -> String {
    match seat {
        Seat::Leader => format!("{{{cluster}}}:leader"),
        Seat::Partition(partition) => PartitionKeys::new(cluster, partition).own,
    }
}

/// Who is there: a hash from broker to when it said so, until when that lasts (both in milliseconds by the clock of Redis, with a
/// space behind each) and what it said.
#[must_use]
pub fn roll(cluster: &str) -> String {
    format!("{{{cluster}}}:roll")
}

/// What the leader proposed last.
#[must_use]
pub fn assignment(cluster: &str) -> String {
    format!("{{{cluster}}}:assignment")
}

/// The keys of one partition.
#[derive(Debug, Clone)]
pub struct PartitionKeys {
    /// Who owns it. See [`own`].
    pub own: String,
    /// Scheduled tasks: a sorted set of ids by `fire_at`.
    pub due: String,
    /// Tasks outside of time, paused or watches that have fired: the same.
    pub paused: String,
    /// Living tasks: a hash from id to `fire_at` and body; and of a task that ended with its first fire the record, in
    /// its place.
    pub tasks: String,
    /// Postponements since the body was written: a hash from id to time and version.
    pub late: String,
    /// Named tasks: a hash from namespace and key to id and head.
    pub names: String,
    /// Dead letters: a hash from fire to letter.
    pub letters: String,
    /// Dead letters of a namespace in their order: a sorted set of namespace and fire, by bytes.
    pub dead: String,
    /// The same by the time of death.
    pub dead_ages: String,
    /// How other fires ended: a hash from fire to record.
    pub history: String,
    /// Those fires whose nominal time cannot be told from the task's id: a sorted set by bytes.
    pub fires: String,
    /// Pieces of history, each with the fires of one batch: a sorted set by the time of the last end.
    pub ages: String,
    /// Counts by namespace and state, and the bytes of history: a hash of numbers.
    pub counts: String,
}

impl PartitionKeys {
    /// Those of a partition.
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
            counts: key("counts"),
        }
    }

    /// All of them, in the order in which `apply` wants them.
    #[must_use]
    pub fn all(&self) -> [&str; 13] {
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
        ]
    }
}

/// Why a cluster cannot have this name, if it cannot: names go into hash tags and ACL patterns.
#[must_use]
pub fn fault_of_name(cluster: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if cluster.is_empty() || cluster.len() > CLUSTER_BYTES_MAX {
        return Some("must have from 1 to 64 letters");
    }
    (!cluster.bytes().all(plain)).then_some("may have letters, digits, - and _ only")
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
        assert_eq!(keys.all().into_iter().collect::<BTreeSet<_>>().len(), 13);
        assert_eq!(own("shop", Seat::Partition(partition)), keys.own);
        assert_eq!(own("shop", Seat::Leader), "{shop}:leader");
        assert_eq!(meta("shop"), "{shop}:meta");
        // One script has them and the leader seat.
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
