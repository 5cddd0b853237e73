//! Handlers by the beginning of a key: the longest prefix of a key decides.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use serde::Serialize;

use super::attempt::{HandlerResult, result_of};
use crate::{BoxFuture, Dedup, Delivery, Failure};

/// Runs the handler of a prefix, whatever its type, unless the [`Dedup`] has seen the fire, and
/// returns its value as JSON.
type PrefixRoute = Arc<dyn Fn(Delivery, Option<Dedup>) -> BoxFuture<HandlerResult> + Send + Sync>;

/// The handlers of a worker by prefix. The empty prefix is that of all keys, and of tasks without
/// one.
#[derive(Clone, Default)]
pub(super) struct KeyRoutes {
    handlers: BTreeMap<String, PrefixRoute>,
}

impl fmt::Debug for KeyRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.handlers.keys()).finish()
    }
}

impl KeyRoutes {
    /// Sets the handler of a prefix.
    pub(super) fn set<H, F, R>(&mut self, prefix: String, handler: H)
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, Failure>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        let handler = Arc::new(handler);
        let route = move |delivery: Delivery, dedup: Option<Dedup>| -> BoxFuture<HandlerResult> {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                let Some(dedup) = dedup else {
                    return result_of(&handler(delivery).await?);
                };
                let fire_id = delivery.fire_id.clone();
                let value = dedup.once_with(&fire_id, || handler(delivery)).await?;
                value.as_ref().map_or(Ok(None), result_of)
            })
        };
        self.handlers.insert(prefix, Arc::new(route));
    }

    /// Calls the handler of a delivery. Without one, the attempt fails.
    pub(super) fn call(
        &self,
        delivery: Delivery,
        dedup: Option<Dedup>,
    ) -> BoxFuture<HandlerResult> {
        let key = delivery.key.as_deref().unwrap_or_default();
        match self.find(key) {
            Some(handler) => handler(delivery, dedup),
            None => {
                let reason = format!("the worker has no handler for the key {key:?}");
                Box::pin(async move { Err(Failure::fail(reason)) })
            }
        }
    }

    fn find(&self, key: &str) -> Option<&PrefixRoute> {
        // Of the prefixes of one key, the longest is the last in their order.
        let mut up_to_key = self.handlers.range::<str, _>((Unbounded, Included(key))).rev();
        up_to_key.find(|(prefix, _)| key.starts_with(prefix.as_str())).map(|(_, handler)| handler)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_of_a_key_decides() {
        let mut routes = KeyRoutes::default();
        for prefix in ["unit:", "unit:door:", "lamp-"] {
            routes.set(prefix.to_owned(), |_| async { Ok::<_, Failure>(()) });
        }
        let prefix_of = |routes: &KeyRoutes, key: &str| {
            let found = routes.find(key)?;
            let same = |handler: &PrefixRoute| Arc::ptr_eq(handler, found);
            routes.handlers.iter().find(|(_, one)| same(one)).map(|(prefix, _)| prefix.clone())
        };
        for (key, want) in [
            ("unit:1", Some("unit:")),
            ("unit:door", Some("unit:")),
            ("unit:door:1", Some("unit:door:")),
            ("unit:door:", Some("unit:door:")),
            ("unit:zebra", Some("unit:")),
            ("lamp-7", Some("lamp-")),
            ("lamp", None),
            ("zebra", None),
            ("", None),
        ] {
            assert_eq!(prefix_of(&routes, key).as_deref(), want, "{key}");
        }
        routes.set(String::new(), |_| async { Ok::<_, Failure>(()) });
        assert_eq!(prefix_of(&routes, "zebra").as_deref(), Some(""));
        assert_eq!(prefix_of(&routes, "unit:1").as_deref(), Some("unit:"));
    }
}
