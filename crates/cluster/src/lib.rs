//! A broker among brokers: who is there, who leads, who holds which partition.
//!
//! In: what a store answers ([`LeaseStore`](punctual_store::LeaseStore), [`Roster`](punctual_store::MembershipStore)), what the broker
//! says of its owners, and the time. Out: what to ask the store, and [`Directive`]s for the broker: start an owner, let it
//! act longer, hand it over, drop it.
//!
//! The leader proposes, the lease of the partition disposes: whatever is decided here by mistake or from old news costs a
//! detour. That nobody acts for a partition beside its owner, and that no write of an earlier owner counts, is kept by
//! leases and epochs alone.
//!
//! [`Member`] is a value that tests drive by hand: `on(event, now)` changes it, `act(now)` gives out what is to be
//! done. [`spawn`] runs one over a store.
//!
//! Next door: `engine` runs a partition and knows nothing of this; `server` wires the two and speaks with other brokers.
//! Why so: `docs/adr/0012`.

mod event;
mod member;

mod heart;
mod hold;
mod lead;

mod assign;
mod roll;
mod skew;

mod run;
mod terms;

pub use event::{BrokerView, ClusterView, Directive, MemberAction, MemberEvent};
pub use member::Member;
pub use run::{MemberHandle, spawn};
pub use terms::MemberConfig;
