//! Checks that owners show what is so (G16): a delivery that waits in its courier is overdue and
//! not in flight.

use super::*;
use crate::callers::shop;

impl Simulation {
    /// Checks the gauges of all owners of a broker, in runs with waits.
    pub(super) fn check_gauges(&mut self, number: usize) {
        if self.waits.is_none() {
            return;
        }
        let owner_time = self.owner_time(number);
        let broker = &mut self.brokers[number];
        for (partition, held) in &mut broker.owners {
            let (reply, mut gauges) = oneshot::channel();
            held.owner.on(OwnerEvent::Gauge(Some(shop()), reply), owner_time);
            // An owner that has stopped shows nothing.
            let Ok(gauges) = gauges.try_recv() else { continue };
            let owner = (*partition, held.epoch);
            // An owner that hands over leaves late reports to its successor.
            if broker.stopping.iter().any(|(partition, epoch, _)| (*partition, *epoch) == owner) {
                continue;
            }
            let sent = broker.sent.get(&owner).copied().unwrap_or_default() + held.inherited;
            let waiting = broker.waiting.values().filter(|waiting| {
                let recalled = waiting.delivery.permit.is_recalled();
                (waiting.partition, waiting.epoch) == owner && !recalled
            });
            let waiting = waiting.map(|waiting| &waiting.delivery);
            self.checker.check_gauges(&gauges, waiting, sent);
        }
    }
}
