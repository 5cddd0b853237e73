//! Variants: a world that is broken on purpose, to see that the watch over the promises can fail.

/// What is broken, if anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// Nothing: the product as it is.
    #[default]
    Sound,
    /// Owners act without looking at their lease.
    OwnersIgnoreTheirLease,
    /// The store takes writes of any epoch.
    StoreDoesNotFence,
    /// The store answers for tasks that it does not keep.
    StoreForgetsTasks,
    /// The store answers for cancellations that it does not make.
    StoreForgetsCancels,
    /// The store answers for postponements that it does not make.
    StoreForgetsPostponements,
    /// The store makes some changes twice.
    StoreMakesTwice,
    /// The store makes some batches that it refuses.
    StoreMakesWhatItRefuses,
    /// The store does not keep what makes a creation repeatable.
    StoreForgetsReceipts,
    /// A hand-over does not say what is under way.
    HandOverForgetsFlights,
    /// What may be received at most once is sent without a claim.
    NothingIsClaimed,
    /// Owners go by a clock that is seconds ahead.
    OwnersAreEarly,
    /// Couriers say that what failed was acked.
    CouriersLie,
    /// A broker that is to start an owner does not.
    OwnersDoNotStart,
    /// Nobody gives up its partitions because its clock is wrong.
    SkewIsIgnored,
}
