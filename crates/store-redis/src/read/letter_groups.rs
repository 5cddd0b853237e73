//! Groups of dead letters, as `letter_groups.lua` counts them.

use punctual_core::Namespace;
use punctual_store::{CountedGroup, StoreError};

use crate::format::groups;
use crate::format::keys::PartitionKeys;
use crate::store::RedisStore;
use crate::transport::reply;
use crate::transport::script::{self, ScriptCall};

impl RedisStore {
    pub(crate) async fn read_letter_groups(
        &self,
        keys: &PartitionKeys,
        namespace: &Namespace,
    ) -> Result<Vec<CountedGroup>, StoreError> {
        let PartitionKeys { counted, groups, dead, .. } = keys;
        let call = ScriptCall::new(&script::READ_GROUPS, [counted.as_str(), groups, dead])
            .arg(namespace.as_str());
        let [complete, values] = reply::tuple(self.reads.call(&call).await?)?;
        if reply::integer(&complete)? == 0 {
            let why = "the dead letters of an earlier version are not counted yet";
            return Err(StoreError::Unavailable(why.into()));
        }
        let values = reply::optional_bytes_list(values)?.into_iter().flatten();
        let read = values.map(|value| groups::read_group(&value));
        // What is damaged is logged and counted.
        let damaged = |error| {
            let name = namespace.as_str().as_bytes();
            self.damage.found("a group of dead letters", groups, name, error)
        };
        Ok(read.filter_map(|group| group.map_err(damaged).ok()).collect())
    }
}
