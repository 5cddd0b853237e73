//! Taking a partition over from a broker that handed it over.
//!
//! Each delivery that was in flight there counts as in flight here as well, in its lane, without
//! being sent. A report that is passed on settles it, or the end of its time does. Until lookups
//! have found all of them in the store, the owner decides nothing: from then on inherited
//! deliveries and its own are alike.

use std::sync::Arc;

use punctual_core::{DeadReason, Timestamp};

use crate::commands::lookup::FoundTask;
use crate::event::Event;
use crate::owner::Owner;
use crate::ownership::in_flight::{InFlight, StoredAs};

impl Owner {
    /// Takes over deliveries that are in flight at another broker. Must come before any event.
    pub fn inherit(&mut self, in_flight: Vec<InFlight>) {
        self.deliveries.expect_inherited(in_flight.len());
        in_flight.into_iter().for_each(|delivery| self.queue_adoption(delivery));
    }

    /// Holds calls and reports back while inherited deliveries are being looked up, and returns
    /// every other event.
    pub(crate) fn unless_resolving(&mut self, event: Event) -> Option<Event> {
        if self.deliveries.is_resolving() && matches!(event, Event::Call(_) | Event::Ended(_)) {
            self.deliveries.hold_back(event);
            return None;
        }
        Some(event)
    }

    /// Counts a delivery as in flight, now that the store was asked about its fire. A fire that the
    /// store does not have any more is dropped.
    pub(crate) fn adopt_one(&mut self, delivery: &InFlight, found: FoundTask, now: Timestamp) {
        let definition = match delivery.stored_as {
            // The same delivery was handed over twice.
            _ if self.deliveries.is_inherited(delivery.fire_id) => None,
            StoredAs::Filed => found.task.and_then(|task| self.tasks.inherit(task, delivery)),
            StoredAs::Claimed { task_continues, key_reused, callback } => {
                let letter = found.letter.filter(|letter| letter.reason == DeadReason::Unknown);
                letter.map(|letter| {
                    let definition = Arc::clone(&letter.task.definition);
                    let fired_at = delivery.fired_at;
                    self.deliveries.inherit_claim(
                        letter.task,
                        task_continues,
                        key_reused,
                        callback,
                        fired_at,
                    );
                    definition
                })
            }
        };
        if let Some(definition) = definition {
            self.deliveries.inherit(delivery, &definition, now);
        }
        self.deliveries.resolved_inherited();
        if !self.deliveries.is_resolving() {
            for event in self.deliveries.take_held_back() {
                self.on(event, now);
            }
        }
    }

    /// Returns when the next inherited delivery expires. During a hand-over none does: that is left
    /// to the successor.
    pub(crate) fn next_inherited_end(&self) -> Option<Timestamp> {
        self.deliveries.next_inherited_end().filter(|_| !self.tenure.is_handing_over())
    }

    /// Settles inherited deliveries whose time is over as expired.
    pub(crate) fn expire_inherited(&mut self, now: Timestamp) {
        if self.next_inherited_end().is_some_and(|until| until <= now) {
            let reports = self.deliveries.expired_inherited(now);
            self.on_ended(reports, now);
        }
    }
}
