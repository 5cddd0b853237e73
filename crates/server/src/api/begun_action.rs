//! A call that is noted as an action of an operator when it has succeeded (`crate::actions`).

use std::sync::Arc;

use punctual_core::{Clock as _, Namespace};

use crate::actions::{ActionDetail, Actions, OperatorAction};
use crate::auth::Identity;
use crate::broker::Broker;
use crate::clock::SystemClock;

/// A call that is an action if it succeeds.
#[derive(Debug)]
pub(crate) struct BegunAction {
    actions: Arc<Actions>,
    clock: Arc<SystemClock>,
    namespace: Namespace,
    call: &'static str,
    by: String,
    name: String,
}

impl BegunAction {
    pub(crate) fn new(
        broker: &Broker,
        identity: &Identity,
        namespace: &Namespace,
        call: &'static str,
        name: &str,
    ) -> Self {
        Self {
            actions: Arc::clone(&broker.actions),
            clock: Arc::clone(&broker.clock),
            by: identity.name_in(namespace),
            namespace: namespace.clone(),
            call,
            name: name.to_owned(),
        }
    }

    pub(crate) fn call(&self) -> &'static str {
        self.call
    }

    /// Notes the action: its call has succeeded.
    pub(crate) fn end(self, did: ActionDetail) {
        let Self { actions, clock, namespace, call, by, name } = self;
        let ActionDetail { name: given, detail, changed } = did;
        let (at, call, name) = (clock.now(), call.to_owned(), given.unwrap_or(name));
        actions.add(&namespace, OperatorAction { at, call, by, name, detail, changed });
    }
}
