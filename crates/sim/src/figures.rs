//! Counts of what happened in a run, so that tests can check that enough did.

/// What happened in one run, or in several together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimFigures {
    /// Events that were handled.
    pub steps: u64,
    /// Faults that occurred.
    pub faults: u64,
    /// Tasks that callers ordered.
    pub orders: u64,
    /// Commands of callers.
    pub calls: u64,
    /// Deliveries that were received.
    pub received: u64,
    /// Owners that were started.
    pub owners: u64,
    /// Partitions that were handed over.
    pub hand_overs: u64,
    /// Deliveries in flight that owners inherited from another broker.
    pub inherited: u64,
    /// Batches that a failover lost.
    pub lost_batches: u64,
    /// Batches that reached the store after their owner had given them up.
    pub late_batches: u64,
    /// Callbacks that reported the end of a fire.
    pub callbacks: u64,
    /// Deliveries that waited in their couriers.
    pub waited: u64,
    /// Deliveries that their owner recalled before they were sent.
    pub recalled: u64,
    /// Deliveries that were not sent because the lease was over.
    pub lease_over: u64,
    /// Simulated milliseconds.
    pub millis: u64,
    /// The largest lag of a first attempt, in milliseconds.
    pub lag_max_ms: u64,
}

impl SimFigures {
    /// Adds the counts of two runs, and takes the larger lag.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            faults: self.faults + other.faults,
            orders: self.orders + other.orders,
            calls: self.calls + other.calls,
            received: self.received + other.received,
            owners: self.owners + other.owners,
            hand_overs: self.hand_overs + other.hand_overs,
            inherited: self.inherited + other.inherited,
            lost_batches: self.lost_batches + other.lost_batches,
            late_batches: self.late_batches + other.late_batches,
            callbacks: self.callbacks + other.callbacks,
            waited: self.waited + other.waited,
            recalled: self.recalled + other.recalled,
            lease_over: self.lease_over + other.lease_over,
            millis: self.millis + other.millis,
            lag_max_ms: self.lag_max_ms.max(other.lag_max_ms),
        }
    }
}
