//! A store that several brokers share: leases, members, and what a broker asks of it beyond the
//! contracts.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Assignment, BrokerId, Epoch, Heartbeat, Lease, Seat, Timestamp};
use punctual_store::{LeaseStore, Members, MembershipStore, StoreError};
use punctual_store_redis::RedisStore;
use punctual_store_sql::{MysqlStore, PostgresStore};

/// A shared store of any kind. Clones are the same store.
#[derive(Debug, Clone)]
pub enum SharedStore {
    /// In Redis.
    Redis(Arc<RedisStore>),
    /// In PostgreSQL.
    Postgres(Arc<PostgresStore>),
    /// In MySQL or MariaDB.
    Mysql(Arc<MysqlStore>),
}

/// Calls the store of whichever kind it is.
macro_rules! call {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Redis($store) => $call,
            Self::Postgres($store) => $call,
            Self::Mysql($store) => $call,
        }
    };
}

impl SharedStore {
    /// The name of the cluster of brokers that share it.
    #[must_use]
    pub fn cluster(&self) -> &str {
        call!(self, store => store.cluster())
    }

    /// Returns how often the store lost writes that it had acknowledged.
    #[must_use]
    pub fn rewinds(&self) -> u64 {
        call!(self, store => store.rewinds())
    }

    /// Passes on an epoch that another broker saw, so that the next one is larger.
    pub fn remember_epoch(&self, seat: Seat, epoch: Epoch) {
        call!(self, store => store.remember_epoch(seat, epoch));
    }

    /// Returns how many damaged values were found since the store was opened.
    #[must_use]
    pub fn damaged_values(&self) -> u64 {
        call!(self, store => store.damaged_values())
    }

    /// Returns where one of the damaged values is, if there are any.
    #[must_use]
    pub fn damaged_place(&self) -> Option<String> {
        call!(self, store => store.damaged_place())
    }

    /// Returns the secret that the brokers of this store share.
    pub async fn secret(&self) -> Result<String, StoreError> {
        call!(self, store => store.secret().await)
    }

    /// Returns host and port of the servers in the configuration.
    #[must_use]
    pub fn configured_servers(&self) -> Vec<(&str, u16)> {
        call!(self, store => store.configured_servers().collect())
    }

    /// Returns host and port of the servers that the store itself names. SQL databases name none:
    /// only those of the configuration are used.
    pub async fn named_servers(&self) -> Result<Vec<(String, u16)>, StoreError> {
        match self {
            Self::Redis(store) => store.named_servers().await,
            Self::Postgres(_) | Self::Mysql(_) => Ok(Vec::new()),
        }
    }
}

impl LeaseStore for SharedStore {
    async fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        call!(self, store => store.acquire(seat, broker, ttl, now).await)
    }

    async fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        call!(self, store => store.renew(lease, ttl, now).await)
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        call!(self, store => store.release(lease).await)
    }

    async fn holder(&self, seat: Seat) -> Result<Option<Lease>, StoreError> {
        call!(self, store => store.holder(seat).await)
    }
}

impl MembershipStore for SharedStore {
    async fn heartbeat(&self, heartbeat: &Heartbeat, ttl: Duration) -> Result<Members, StoreError> {
        call!(self, store => store.heartbeat(heartbeat, ttl).await)
    }

    async fn leave(&self, broker: &BrokerId) -> Result<(), StoreError> {
        call!(self, store => store.leave(broker).await)
    }

    async fn propose(&self, lease: &Lease, assignment: &Assignment) -> Result<(), StoreError> {
        call!(self, store => store.propose(lease, assignment).await)
    }
}
