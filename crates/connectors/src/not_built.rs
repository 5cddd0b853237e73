//! Kinds of systems that this build cannot reach.

use crate::sink::{DynFuture, Sink, SinkSession};
use crate::source::{MessageSession, MessageSource};

/// A sink or a source of a kind that is not built in.
#[derive(Debug)]
pub(crate) struct NotBuilt(pub(crate) &'static str);

impl Sink for NotBuilt {
    fn connect(&self) -> DynFuture<'_, Result<Box<dyn SinkSession>, String>> {
        let problem = format!("{} is not built in", self.0);
        Box::pin(std::future::ready(Err(problem)))
    }
}

impl MessageSource for NotBuilt {
    fn open(&self) -> DynFuture<'_, Result<Box<dyn MessageSession>, String>> {
        let problem = format!("{} is not built in as a source", self.0);
        Box::pin(std::future::ready(Err(problem)))
    }
}
