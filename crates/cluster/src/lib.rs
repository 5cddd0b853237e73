//! Membership of brokers that share a store: which brokers are alive, which one leads, and which
//! partitions each one owns.
//!
//! [`Member`] decides. Its inputs are the answers of the store
//! ([`LeaseStore`](punctual_store::LeaseStore),
//! [`MembershipStore`](punctual_store::MembershipStore)), what the broker reports of its owners,
//! and the time. Its outputs are requests to the store and [`Directive`]s for the broker: start an
//! owner, extend it, hand it over, drop it.
//!
//! The leader only proposes an assignment; the lease of a partition decides who owns it. A wrong or
//! outdated decision here costs time and nothing else: leases and epochs alone guarantee that only
//! one owner of a partition acts, and that no write of an earlier owner is accepted.
//!
//! [`Member`] is a plain value that tests drive directly: `on(event, now)` changes it, and
//! `act(now)` returns what is to be done. [`spawn`] runs one over a store.
//!
//! [`PartitionMoves`] is another plain value. It turns directives into actions on owners, decides
//! which deliveries in flight the next owner inherits, and reports results to the member.
//!
//! `engine` runs a partition and does not depend on this crate; `server` connects the two, calls
//! other brokers and carries the actions out. The reasons are in `docs/adr/0012`.

mod event;
mod member;

mod heartbeat;
mod leader_lease;
mod partition_lease;

mod assign;
mod observed;
mod skew;

mod partition_moves;

mod config;
mod run;

pub use config::MemberConfig;
pub use event::{BrokerView, ClusterView, Directive, MemberAction, MemberEvent};
pub use member::Member;
pub use partition_moves::{
    MoveAction, MoveEvent, ORPHAN_FORWARD_MAX, ORPHAN_RETRY_EVERY, PartitionMoves,
};
pub use run::{MemberHandle, spawn};
