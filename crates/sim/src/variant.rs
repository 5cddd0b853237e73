//! Variants that are broken on purpose, to test that the checker detects each kind of error.

/// What is broken, if anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// Nothing: the code as it is in production.
    #[default]
    Sound,
    /// Owners act without checking their lease.
    OwnersIgnoreTheirLease,
    /// The store accepts writes of any epoch.
    StoreDoesNotFence,
    /// The store acknowledges tasks that it does not keep.
    StoreForgetsTasks,
    /// The store acknowledges cancellations that it does not make.
    StoreForgetsCancels,
    /// The store acknowledges postponements that it does not make.
    StoreForgetsPostponements,
    /// The store applies some changes twice.
    StoreAppliesTwice,
    /// The store applies some batches that it refuses.
    StoreAppliesWhatItRefuses,
    /// The store does not keep receipts of idempotency keys.
    StoreForgetsReceipts,
    /// The store acknowledges callbacks that it does not keep.
    StoreForgetsCallbacks,
    /// Couriers do not pass on what receivers answered.
    CouriersForgetAnswers,
    /// Brokers start tasks that were to start paused.
    NothingStartsPaused,
    /// A hand-over does not include the deliveries in flight.
    HandOverForgetsInFlight,
    /// At-most-once deliveries are sent without a claim.
    NothingIsClaimed,
    /// Owners use a clock that is seconds ahead.
    OwnersAreEarly,
    /// Couriers stamp deliveries before they wait.
    CouriersStampEarly,
    /// Couriers send deliveries that were recalled.
    CouriersIgnoreRecalls,
    /// Couriers send deliveries after the lease of their owner.
    CouriersIgnoreLeases,
    /// Couriers report failures as acked.
    CouriersLie,
    /// A broker ignores some directives to start an owner.
    OwnersDoNotStart,
    /// No broker gives up its partitions because its clock is wrong.
    SkewIsIgnored,
}
