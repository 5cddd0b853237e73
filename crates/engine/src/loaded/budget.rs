//! How much an owner may hold in memory.

/// What one owner may hold in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Tasks. At about half a kilobyte each they are most of the memory of an engine.
    pub tasks: usize,
    /// Bytes of their payloads: a few thousand of the largest take as much again.
    pub payload_bytes: usize,
}

impl Budget {
    /// Returns the share of one owner of what a broker may hold.
    #[must_use]
    pub fn shared_by(owners: u16) -> Self {
        let owners = usize::from(owners.max(1));
        let tasks = (BROKER_TASKS / owners).max(OWNER_TASKS_MIN);
        Self { tasks, payload_bytes: (BROKER_PAYLOAD_BYTES / owners).max(OWNER_PAYLOAD_BYTES_MIN) }
    }
}

/// Of one broker. With everything else it stays well below half a gibibyte.
const BROKER_TASKS: usize = 400_000;
const BROKER_PAYLOAD_BYTES: usize = 128 << 20;
/// However many owners there are: one page of loading must fit.
const OWNER_TASKS_MIN: usize = 10_000;
const OWNER_PAYLOAD_BYTES_MIN: usize = 4 << 20;
